"""`stream.preview(records)` and `table.preview(records)`: run a part of a topology on sample data.

The part is everything that the stream or table depends on: the nodes above it, the other sides of joins, and what fills
the stores that they use. It runs in the test driver, so operators, serdes and stores are those of production.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, cast

from headrace.dsl.logical.graph import Place
from headrace.dsl.logical.lowering import write_all
from headrace.dsl.logical.table_properties import set_versioned
from headrace.dsl.types import K, V
from headrace.html import render_table, shorten
from headrace.model.record import Record
from headrace.topology.builder import Assembly, Topology
from headrace.topology.graph import find_upstream
from headrace.topology.nodes import PassThrough, Process, Source, TableToStream

Samples = Iterable[Any]  # records, (key, value) pairs or values
_NAME = "PREVIEW"


class Preview(list[Record[K, V]], Generic[K, V]):
    """The records that come out, in their order; `dropped` counts by reason those that operators left out.

    A notebook shows a table.

    >>> Preview([Record("ada", 2, 10)])
    key  value  timestamp
    ada  2      10
    """

    def __init__(self, records: Iterable[Record[K, V]] = (), dropped: Mapping[str, int] | None = None) -> None:
        super().__init__(records)
        self.dropped: Mapping[str, int] = dropped or {}

    def __repr__(self) -> str:
        rows = [("key", "value", "timestamp"), *(tuple(map(shorten, row)) for row in self._rows())]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        return render_table(["key", "value", "timestamp"], self._rows(), caption="; ".join(self._notes()))

    def _rows(self) -> Iterator[tuple[Any, Any, Any]]:
        return ((record.key, record.value, record.timestamp) for record in self)

    def _notes(self) -> list[str]:
        return [f"dropped: {count} ({reason})" for reason, count in sorted(self.dropped.items())]


class _Given(NamedTuple):
    topic: str
    record: Record[Any, Any]


def preview(
    place: Place, records: Samples | Mapping[str, Samples], *, is_table: bool, config: Mapping[str, Any] | None
) -> Preview[Any, Any]:
    """Runs the topology up to a place on sample data, and returns what comes out there."""
    # The driver is above the DSL: only a preview needs it, and only when it runs.
    from headrace.testing.driver import TopologyTestDriver  # noqa: PLC0415

    found = list[Record[Any, Any]]()
    topology = cut_topology(place, found, is_table=is_table)
    sources = {
        topic: node for node in topology.graph().nodes.values() if isinstance(node, Source) for topic in node.topics
    }
    internal = topology.graph().internal_topics
    topics = [topic for topic in sources if topic not in internal]
    with TopologyTestDriver(topology, config) as driver:
        for topic, record in _in_order(records, topics):
            source = sources.get(topic)
            serdes = (None, None) if source is None else (source.key, source.value)
            given = driver.input_topic(topic, *cast("Any", serdes))
            given.pipe(record.key, record.value, timestamp=record.timestamp, headers=record.headers)
        prefix = "dropped-records-total/"
        dropped = {name[len(prefix) :]: n for name, n in driver.metrics().items() if name.startswith(prefix)}
    return Preview(found, dropped)


def _in_order(records: Samples | Mapping[str, Samples], topics: Sequence[str]) -> list[_Given]:
    """The samples with their topics, by timestamp; those of one topic keep their sequence."""
    if isinstance(records, Mapping):
        by_topic = cast("Mapping[str, Samples]", records)
    elif len(topics) == 1:
        by_topic = {topics[0]: records}
    else:
        known = ", ".join(f"{topic!r}: […]" for topic in topics)
        raise TypeError(f"the stream depends on {len(topics)} topics: give a dict of records by topic, {{{known}}}")
    given = [_Given(topic, _record_of(sample)) for topic, some in by_topic.items() for sample in some]
    return sorted(given, key=lambda each: each.record.timestamp)


def _record_of(sample: Any) -> Record[Any, Any]:
    """A record as it is, a (key, value) pair, or a value without a key; both of these at time 0.

    >>> _record_of(("ada", 5)), _record_of(5)
    (Record(key='ada', value=5, timestamp=0, headers=()), Record(key=None, value=5, timestamp=0, headers=()))
    """
    if isinstance(sample, Record):
        return cast("Record[Any, Any]", sample)
    match sample:
        case (key, value) if isinstance(sample, tuple):
            pair: tuple[Any, Any] = (key, value)
            return Record(*pair, 0)
        case _:
            return Record(None, cast("object", sample), 0)


# ------------------------------------------------------------------------------------------------- a part of a topology
def cut_topology(place: Place, found: list[Record[Any, Any]], *, is_table: bool) -> Topology:
    """The topology that a place depends on, with a processor there that appends what it gets to a list."""
    draft = place.draft.copy()
    set_versioned(draft)
    whole = write_all(draft)
    needed = find_upstream(whole.graph(), place.step.name)
    for source in whole.global_stores.values():  # a processor may read any global store
        needed |= find_upstream(whole.graph(), source)
    part = Assembly()
    for name, node in whole.nodes.items():
        parents = tuple(parent for parent in whole.parents[name] if parent in needed)
        if name in needed:
            part.nodes[name], part.parents[name] = node, parents
            part.node_stores[name] = dict(whole.node_stores[name])
        elif parents:  # a branch and a processor name their children: what they give these goes nowhere
            part.nodes[name], part.parents[name], part.node_stores[name] = PassThrough(name), parents, {}
    used = {store for stores in part.node_stores.values() for store in stores}
    part.stores = {name: spec for name, spec in whole.stores.items() if name in used}
    part.global_stores = {store: source for store, source in whole.global_stores.items() if store in used}
    sources = [node for node in part.nodes.values() if isinstance(node, Source)]
    read = {topic for source in sources for topic in source.topics}
    part.internal_topics = {name: topic for name, topic in whole.internal_topics.items() if name in read}
    end = place.step.name
    if is_table:
        part.add(TableToStream(f"{_NAME}-TOSTREAM"), end)
        end = f"{_NAME}-TOSTREAM"
    part.add(Process(_NAME, lambda: _Collector(found)), end)
    return Topology(part)


class _Collector:
    """A processor that appends records to a list."""

    def __init__(self, found: list[Record[Any, Any]]) -> None:
        self._found = found

    def process(self, record: Record[Any, Any]) -> None:
        self._found.append(record)
