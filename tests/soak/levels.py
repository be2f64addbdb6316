"""Whether the series of a soak are level: the last third of the time is compared with the first third.

By their medians, but the checkpoint by its lowest tenth: it grows from one purge to the next, and more so after a
fault, when batches are large. What no purge deletes shows in the size that is left after purges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import linear_regression, median, quantiles
from typing import NamedTuple

# How many times the first third the last third may be, and by how much it may be more in any case: MB, number, MB, ms.
LIMITS = {"memory": (1.1, 0.0), "number": (1.1, 5.0), "checkpoint": (1.25, 0.5), "latency": (1.5, 20.0)}
KINDS = {
    "driver": "memory",
    "jvm": "memory",
    "slots": "memory",
    "descriptors": "number",
    "threads": "number",
    "files": "number",
    "checkpoint": "checkpoint",
    "p50": "latency",
    "p99": "latency",
}


class Sample(NamedTuple):
    """One second of a soak. Memory and checkpoint in MB, latency in ms; `files` are temporary files."""

    time: float
    driver: float
    jvm: float
    slots: float
    descriptors: float
    threads: float
    files: float
    checkpoint: float
    p50: float | None
    p99: float | None


def grown(values: Sequence[float | None], *, by_floor: bool = False) -> tuple[float, float]:
    """The medians of the first and of the last third, or the values that nine tenths of each third exceed.

    >>> grown([1, 1, 1, 5, 5, None, 2, 2, 3])
    (1, 2)
    >>> grown([*range(1, 10), *range(9), *range(2, 11)], by_floor=True)
    (1.0, 2.0)
    """
    third = len(values) // 3
    parts = [[value for value in part if value is not None] for part in (values[:third], values[-third:])]
    first, last = (quantiles(part, n=10)[0] if by_floor else median(part) for part in parts)
    return first, last


def compare_phases(points: Sequence[Mapping[str, float]]) -> list[str]:
    """Says for every phase of a batch how long it took in the first and in the last third.

    >>> compare_phases([{"plan": 2.0, "run": 7.0}, {"plan": 2.0, "run": 7.0}, {"plan": 2.0, "run": 9.0}])
    ['plan 2.0 -> 2.0', 'run 7.0 -> 9.0']
    """
    third = max(1, len(points) // 3)
    names = dict.fromkeys(name for point in points for name in point)
    told: list[str] = []
    for name in names:
        first, last = (median(point.get(name, 0.0) for point in part) for part in (points[:third], points[-third:]))
        told.append(f"{name} {first:,.1f} -> {last:,.1f}")
    return told


def judge(samples: Sequence[Sample], warm_up: float) -> list[str]:
    """Says for every series how it stands; those that begin with "NOT LEVEL" have grown too much.

    >>> samples = [Sample(time, 100.0, 300.0, 200.0 + time, 90, 50, 4, 2.0, 10.0, 30.0) for time in range(90)]
    >>> told = judge(samples, warm_up=30.0)
    >>> told[0], told[2]
    ('level: driver 100.0 -> 100.0, +0.00 a minute', 'NOT LEVEL: slots 239.5 -> 279.5, +60.00 a minute')
    """
    counted = [sample for sample in samples if sample.time >= warm_up]
    told: list[str] = []
    for name, kind in KINDS.items():
        first, last = grown([getattr(sample, name) for sample in counted], by_floor=kind == "checkpoint")
        times, more = LIMITS[kind]
        is_level = last <= first * times or last <= first + more
        pairs = [(sample.time, value) for sample in counted if (value := getattr(sample, name)) is not None]
        slope = 60 * linear_regression(*zip(*pairs, strict=True)).slope
        word = "level" if is_level else "NOT LEVEL"
        told.append(f"{word}: {name} {first:,.1f} -> {last:,.1f}, {slope:+,.2f} a minute")
    return told
