"""The section [metrics] of conf/inflight.toml."""

from typing import Annotated, Final

from pydantic import Field

from streaming.config.sections import Section

OFF: Final = -1

_Port = Annotated[int, Field(ge=OFF, le=65_535)]


class MetricsSection(Section):
    """Numbers for Prometheus, served by each process itself at http://HOST:PORT/metrics; docs/operations.md names them."""

    host: str = Field(
        "127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 = all, and then whoever gets there may read them"
    )
    engine_port: _Port = Field(OFF, description="of the engine; -1 = off, 0 = any free one")
    gateway_port: _Port = Field(OFF, description="of a gateway; two on one machine need two ports")
    bridge_port: _Port = Field(OFF, description="of a bridge; two on one machine need two ports")
