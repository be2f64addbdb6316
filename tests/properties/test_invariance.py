"""The same records give the same results however they are cut into batches, with restarts between any two."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, assume, given, settings

from headrace.config import Config
from headrace.runtime.batch import Output
from headrace.state.engine import Engine, MemoryEngine
from headrace.state.lmdb import LmdbEngine
from headrace.state.versioned import Versions
from tests.oracle.running import configuration
from tests.properties.cases import AT_ONCE, ONE_BY_ONE, RESTARTED, Case, Cuts, cases, cuts
from tests.properties.claims import Claim
from tests.properties.levels import Levels

LONG = os.environ.get("HEADRACE_PROFILE") == "long"
EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "3000" if LONG else "70"))
profile = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


class Ran(NamedTuple):
    """What came out, and what is left in the state."""

    outputs: dict[str, list[tuple[Any, ...]]]  # (key, value, timestamp, headers) by topic
    dropped: dict[str, int]
    stores: dict[str, list[tuple[Any, Any]]]
    committed: dict[tuple[int, str], dict[bytes, bytes]]


@contextmanager
def engines(kind: str) -> Iterator[Callable[[int], Engine]]:
    """How to open the engine of a stage: in memory it is always the same one, on disk it is opened anew."""
    if kind == "memory":
        opened: dict[int, Engine] = {}
        yield lambda number: opened.setdefault(number, MemoryEngine())
    else:
        with tempfile.TemporaryDirectory() as directory:
            yield lambda number: LmdbEngine(Path(directory, str(number)), map_size=1 << 20)


def run(case: Case, cut: Cuts, *, caching: bool = False, engine: str = "memory") -> Ran:
    program = case.program()
    config = configuration({"config": case.config | {"cache_max_bytes": 10_000_000 * caching}})
    rows, outputs = case.rows(program), list[Output]()
    with engines(engine) as opened:
        levels = Levels(program.topology, Config.of(config), opened)
        assume(not levels.plan.back_edges)
        for size, restart in cut:
            if not rows:
                break
            batch, rows = rows[:size], rows[size:]
            outputs += levels.run(batch)
            if restart:
                levels.restart()
        if rows:
            outputs += levels.run(rows)
        stores = {name: contents(store) for name, store in levels.stores().items()}
        ran = Ran(by_topic(outputs), dict(levels.dropped), stores, levels.committed())
        levels.close()
    return ran


def by_topic(outputs: list[Output]) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for topic, _, *record, _ in outputs:
        found.setdefault(topic, []).append(tuple(record))
    return found


def contents(store: Any) -> list[tuple[Any, Any]]:
    return list(store.latest() if isinstance(store, Versions) else store.all())


# ------------------------------------------------------------------------------------------------------- caching off
@given(case=cases(), cut=cuts, other_cut=cuts)
@profile
def test_without_caching_every_cut_gives_the_same(case: Case, cut: Cuts, other_cut: Cuts):
    expected = run(case, AT_ONCE)
    for given_cut, engine in [(ONE_BY_ONE, "memory"), (RESTARTED, "memory"), (cut, "memory"), (other_cut, "disk")]:
        actual = run(case, given_cut, engine=engine)
        assert actual.outputs == expected.outputs
        assert actual.dropped == expected.dropped
        assert actual.stores == expected.stores
        assert actual.committed == expected.committed


# -------------------------------------------------------------------------------------------------------- caching on
@given(case=cases(steady=True), cut=cuts, other_cut=cuts)
@profile
def test_with_caching_every_cut_gives_the_same_tables(case: Case, cut: Cuts, other_cut: Cuts):
    expected = run(case, AT_ONCE, caching=True)
    for given_cut, engine in [(ONE_BY_ONE, "memory"), (RESTARTED, "memory"), (cut, "memory"), (other_cut, "disk")]:
        actual = run(case, given_cut, caching=True, engine=engine)
        for topic, claim in case.sinks.items():
            assert claimed(actual, topic, claim) == claimed(expected, topic, claim), topic
        for name, claim in case.stores.items():
            assert kept(actual, name, claim) == kept(expected, name, claim), name


def claimed(ran: Ran, topic: str, claim: Claim) -> Any:
    """What is claimed of a topic: all its records, or the last value of every key."""
    records = ran.outputs.get(topic, [])
    if claim.exact:
        return records
    table = {key: (value, timestamp if claim.times else None) for key, value, timestamp, _ in records}
    return {key: row for key, row in table.items() if row[0] is not None and not (claim.zeros and row[0] == bytes(8))}


def kept(ran: Ran, name: str, claim: Claim) -> Any:
    if name not in ran.stores:
        return None
    entries = ran.stores[name]
    if claim.times and not claim.zeros:
        return entries
    table = {key: value[0] for key, value in entries}
    return {key: value for key, value in table.items() if not (claim.zeros and value == 0)}
