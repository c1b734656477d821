"""What this broker lets an event type ask for."""

from dataclasses import dataclass

from nakadi.catalog.rules import check_retention


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Retention in milliseconds."""

    default_partitions: int
    max_partitions: int
    retention_min: int
    retention_default: int
    retention_max: int

    def check_retention(self, retention_time: int | None) -> None:
        check_retention(retention_time, minimum=self.retention_min, maximum=self.retention_max)
