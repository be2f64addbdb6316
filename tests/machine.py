"""How busy the machine is: limits of time hold for a machine whose cores are free."""

from __future__ import annotations

import os
from pathlib import Path


class Slowdown:
    """Measures, from its creation on, how many times longer things take because others have the cores.

    Those are other processes on this machine, and its host, which the load average does not show.
    """

    def __init__(self) -> None:
        self._load, self._ticks = _load_per_core(), _count_ticks()

    def factor(self) -> float:
        stolen, total = (now - then for now, then in zip(_count_ticks(), self._ticks, strict=True))
        return max(1.0, self._load, _load_per_core()) / (1 - min(stolen / max(total, 1), 0.9))


def _load_per_core() -> float:
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def _count_ticks() -> tuple[int, int]:
    """Of all cores: those that the host took away, and all."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return ticks[7], sum(ticks)
