"""Runs a case on batches, level by level, or record by record in the test driver."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, assume, settings

from headrace.config import Config
from headrace.runtime.batch import Output
from headrace.state.engine import Engine, MemoryEngine
from headrace.state.lmdb import LmdbEngine
from headrace.state.versioned import Versions
from tests.oracle.running import configuration
from tests.oracle.topologies import Program
from tests.properties.cases import Case, Cuts
from tests.properties.levels import Levels

# HEADRACE_PROFILE=long tries many examples, others in every run; HEADRACE_EXAMPLES says how many.
LONG = os.environ.get("HEADRACE_PROFILE") == "long"
EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "3000" if LONG else "80"))
profile = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

Records = list[tuple[Any, ...]]  # (key, value, timestamp, headers)


class Ran(NamedTuple):
    """What came out, and what is left in the state."""

    outputs: dict[str, Records]  # by topic
    dropped: dict[str, int]
    stores: dict[str, list[tuple[Any, Any]]]
    committed: dict[tuple[int, str], dict[bytes, Any]]


@contextmanager
def engines(kind: str) -> Iterator[Callable[[int], Engine]]:
    """How to open the engine of a stage: in memory it is always the same one, on disk it is opened anew."""
    if kind == "memory":
        opened: dict[int, Engine] = {}
        yield lambda number: opened.setdefault(number, MemoryEngine())
    else:
        with tempfile.TemporaryDirectory() as directory:
            yield lambda number: LmdbEngine(Path(directory, str(number)), map_size=1 << 20)


@contextmanager
def levels_of(case: Case, program: Program, *, caching: bool = False, engine: str = "memory") -> Iterator[Levels]:
    """Without back edges: what travels on those waits for the next batch."""
    with engines(engine) as opened:
        levels = Levels(program.topology, Config.of(settings_of(case, caching=caching)), opened)
        try:
            assume(not levels.plan.back_edges)
            yield levels
        finally:
            levels.close()


def settings_of(case: Case, *, caching: bool = False) -> dict[str, Any]:
    return configuration({"config": case.config | {"cache_max_bytes": 10_000_000 * caching}})


def run(case: Case, cut: Cuts, *, caching: bool = False, engine: str = "memory") -> Ran:
    """The case, in batches of the sizes that the cut gives."""
    program = case.program()
    rows, outputs = case.rows(program), list[Output]()
    with levels_of(case, program, caching=caching, engine=engine) as levels:
        for size, restart in cut:
            if not rows:
                break
            batch, rows = rows[:size], rows[size:]
            outputs += levels.run(batch)
            if restart:
                levels.restart()
        if rows:
            outputs += levels.run(rows)
        return Ran(by_topic(outputs), dict(levels.dropped), contents(levels.stores()), levels.committed())


def by_topic(outputs: list[Output]) -> dict[str, Records]:
    found: dict[str, Records] = {}
    for topic, _, *record, _ in outputs:
        found.setdefault(topic, []).append(tuple(record))
    return found


def contents(stores: Mapping[str, Any]) -> dict[str, list[tuple[Any, Any]]]:
    """All that can be seen in stores."""
    return {name: list(s.latest() if isinstance(s, Versions) else s.all()) for name, s in sorted(stores.items())}
