"""What the fast path may be told. Plain values: reading, checking and explaining them is the host's work (streaming/config)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FastPathSettings:
    """These are the defaults of [fast_path], too: streaming/config/mqtt_sections.py takes them from here.

    The gateway refuses all offers while one of the three `pressure_…` limits is passed, and for `pressure_hold_ms` after that.
    """

    enabled: bool = True
    messages_topic: str = "inflight.messages"
    routes_topic: str = "inflight.routes"
    group_id: str = "inflight-routers"
    max_payload_bytes: int = 65_536
    max_lag: int = 1_000  # messages of a partition that the router has not read; beyond, it goes on at the end
    pressure_loop_lag_ms: int = 400  # how late the event loop calls what is due, for a second
    pressure_unconfirmed: int = 2_000  # records of the gateway that Kafka has not confirmed
    pressure_offers: int = 2_000  # offers that the router has made and the event loop has not looked at
    pressure_hold_ms: int = 200
