"""Makes the reference of the alerts from conf/prometheus/alerts.yml."""

from pathlib import Path
from typing import Final

import yaml

from docs.generate.markdown import NOTE, code, table

_FILE: Final = Path(__file__).parent.parent.parent / "conf" / "prometheus" / "alerts.yml"
_HEAD: Final = f"""# Alerts

{NOTE}

The alerts of `conf/prometheus/alerts.yml`, for your own Prometheus. Adapt the thresholds to your traffic. Each name leads to what to do.
A name that begins with `slo:` is a rule of the same file: the share of what was bad in that time ([objectives](../operate/alerts.md#objectives-and-error-budgets)).
"""


def page() -> str:
    """Returns the page."""
    groups = yaml.safe_load(_FILE.read_text(encoding="utf-8"))["groups"]
    rows = [
        (
            f"[{alert['alert']}](../operate/alerts.md#{alert['alert'].lower()})",
            alert["labels"]["severity"],
            str(alert.get("for", "at once")),
            code(" ".join(str(alert["expr"]).split())),
        )
        for group in groups
        for alert in group["rules"]
        if "alert" in alert
    ]
    return f"{_HEAD}\n{table(('alert', 'severity', 'for', 'expression'), rows)}\n"
