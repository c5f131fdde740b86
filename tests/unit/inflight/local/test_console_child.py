import pytest

from inflight.local.supervisor import serves_console, shown_metrics
from streaming.config.settings import load_settings


@pytest.mark.parametrize(
    ("overrides", "shown"),
    [
        ([], ("metrics.engine_port=0", "metrics.gateway_port=0", "metrics.census_interval=15s")),
        (["metrics.engine_port=9461"], ("metrics.gateway_port=0",)),
        (["metrics.engine_port=9461", "metrics.gateway_port=0"], ()),
        (["metrics.host=0.0.0.0"], ()),
        (["console.port=-1"], ()),
    ],
)
def test_engine_and_gateway_serve_metrics_on_loopback_by_default(overrides: list[str], shown: tuple[str, ...]) -> None:
    assert shown_metrics(load_settings(None, overrides)) == shown
    load_settings(None, [*overrides, *shown])


def test_the_console_is_served_unless_it_is_turned_off() -> None:
    assert serves_console(load_settings())
    assert serves_console(load_settings(None, ["console.port=8080"]))
    assert not serves_console(load_settings(None, ["console.port=-1"]))
