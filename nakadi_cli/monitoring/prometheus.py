"""Alert rules in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nakadi_cli import __version__
from nakadi_cli.monitoring.alerts import Alert
from nakadi_cli.output import as_yaml


def alert_rules(alerts: Iterable[Alert]) -> str:
    """Write alerts as a file of rules, which `rule_files` in Prometheus' configuration may name."""
    rules = {"groups": [{"name": "nakadi", "rules": [_rule(each) for each in alerts]}]}
    return f"# Written by nakadi doctor --write-rules, version {__version__}.\n{as_yaml(rules)}"


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": f"{alert.minutes}m",
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.action, "runbook": alert.page},
    }
