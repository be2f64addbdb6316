"""What was measured of one system on one workload."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Outcome:
    """`problem` says why there is nothing to show: it begins with "wrong:", "failed:" or "cannot:"."""

    workload: str
    system: str
    cores: int
    records: int = 0
    seconds: float | None = None
    cpu: float | None = None
    start_up: float | None = None
    megabytes: float | None = None
    is_limited: bool = False  # the time was over before the backlog was; `records` were done
    latency: list[float] | None = None  # p50, p99, p99.9 in ms
    problem: str | None = None
    log: str | None = None  # of the system, if something is to be looked up

    @property
    def cell(self) -> tuple[str, str, int]:
        return self.workload, self.system, self.cores

    @property
    def speed(self) -> float | None:
        """Records a second."""
        return self.records / self.seconds if self.seconds and not self.problem else None

    @property
    def megabytes_a_second(self) -> float | None:
        return self.megabytes / self.seconds if self.seconds and self.megabytes and not self.problem else None

    @property
    def cpu_per_million(self) -> float | None:
        return self.cpu / self.records * 1e6 if self.cpu and self.records and not self.problem else None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
