"""The table at the end of `make attacks`."""

from typing import Final

from rich.console import Console
from rich.table import Table

from bench.devices import percentile
from trials.attacks.gateway_watch import MIB
from trials.attacks.result import Phase, Result

TARGET: Final = 2.0
"""The greatest ratio of the p99 under attack to the undisturbed p99."""


def show(result: Result, console: Console) -> None:
    """Latency is shown and not judged: it is the machine's, too."""
    undisturbed_ms = percentile(result.phases[0].latencies_ms, 0.99)
    table = Table(
        "attack", "p50 ms", "p99 ms", "times", "fast path", "reconnects", "gateway MiB", "gateway CPU", "attacker CPU", "done"
    )
    for phase in result.phases:
        table.add_row(*_row(phase, undisturbed_ms))
    console.print(table)
    most_bytes = max(phase.gateway.most_bytes for phase in result.phases)
    console.print(
        f"{result.sent:,} messages to good devices: {result.missing} missing, {result.twice} twice. "
        f"Gateway: at most {most_bytes // MIB} MiB, allowed {result.allowed_bytes // MIB}. CPU: cores, on average."
    )


def _row(phase: Phase, undisturbed_ms: float) -> list[str]:
    p99_ms = percentile(phase.latencies_ms, 0.99)
    times = p99_ms / undisturbed_ms if undisturbed_ms else 0.0
    done = "\n".join(f"{count:,} {what}" for what, count in phase.attacker.done.items())
    return [
        phase.what,
        f"{percentile(phase.latencies_ms, 0.5):,.0f}",
        f"{p99_ms:,.0f}",
        f"{times:.1f}" if times <= TARGET else f"[red]{times:.1f}",
        f"{phase.fast_share:.0%}",
        f"{phase.lost}",
        f"{phase.gateway.most_bytes // MIB}",
        f"{phase.gateway.cores:.2f}",
        f"{phase.attacker.cores:.2f}",
        done,
    ]
