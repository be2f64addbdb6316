"""A timeline: what goes into a topology and what comes out, record by record, as text or as a picture.

    orders  a:5@0  b:20@10  a:30@25
    large          b:20@10  a:30@25

A row is a topic, a column is one input. The cell of an output stands below the input that caused it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from typing import Any, NamedTuple, cast

from headrace.html import render_picture
from headrace.model.record import Record
from headrace.model.windows import Windowed
from headrace.runtime.serdes import Serdes
from headrace.serde.protocol import Serde
from headrace.testing.driver import TopologyTestDriver
from headrace.topology.builder import Topology
from headrace.topology.nodes import Sink, Source

Input = tuple[str, Any, Any, int] | timedelta  # (topic, key, value, timestamp), or an advance of the wall clock
_CLOCK, _DROPPED = "wall clock", "dropped"
_WIDTH, _HEIGHT, _LEFT, _PAD = 7.3, 20, 16, 12  # of a character, a line, the left edge and a column's gap, in pixels


class TopicRecord(NamedTuple):
    """A record and the topic that it was read from or written to."""

    topic: str
    record: Record[Any, Any]


class Event(NamedTuple):
    """One input, the outputs that it caused, and the reasons for which records were dropped."""

    given: TopicRecord | timedelta
    outputs: tuple[TopicRecord, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The events of a run. `print` shows them as text; a notebook shows a picture."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    events: tuple[Event, ...]

    def __str__(self) -> str:
        lines, widths = list[str](), self._widths()
        for name, cells in self._rows():
            height = max(1, *(len(cell) for cell in cells))
            for line in range(height):
                head = (name if line == 0 else "").ljust(self._head())
                texts = [(cell[line] if line < len(cell) else "").ljust(widths[n]) for n, cell in enumerate(cells)]
                lines.append("  ".join([head, *texts]).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return render_picture(self._repr_svg_(), str(self))

    def _repr_svg_(self) -> str:
        """Returns the picture: one lane for each topic, one column for each input."""
        widths, y, parts = self._widths(), 0.0, list[str]()
        start = _LEFT + self._head() * _WIDTH + _PAD
        width = start + sum(width * _WIDTH + 2 * _PAD for width in widths) + _PAD
        for name, cells in self._rows():
            height = max(1, *(len(cell) for cell in cells)) * (_HEIGHT + 6) + 10
            parts.append(f'<text x="{_LEFT}" y="{y + 23:g}" class="topic">{escape(name)}</text>')
            parts.append(f'<path d="M{start - 6:g} {y + height - 2:g}H{width - 6:g}" class="lane"/>')
            x = start
            for cell, column in zip(cells, widths, strict=True):
                for line, text in enumerate(cell):
                    kind = "dropped" if name == _DROPPED else "input" if name in self.inputs else "output"
                    top = y + 6 + line * (_HEIGHT + 6)
                    size = f'width="{len(text) * _WIDTH + _PAD:.1f}" height="{_HEIGHT}"'
                    parts.append(f'<rect x="{x:.1f}" y="{top:g}" {size} rx="6" class="{kind}"/>')
                    parts.append(f'<text x="{x + _PAD / 2:.1f}" y="{top + 14.5:g}">{escape(text)}</text>')
                x += column * _WIDTH + 2 * _PAD
            y += height
        style = (
            "text{font:12px ui-monospace,monospace;fill:#222}.topic{font-weight:bold;fill:currentColor}"
            ".lane{stroke:#9998;fill:none}.input{fill:#cfe3f7}.output{fill:#d6efd0}.dropped{fill:#f3d3cd}"
        )
        box = f'viewBox="0 0 {width:.0f} {y:.0f}" width="{width:.0f}" height="{y:.0f}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img"><style>{style}</style>{"".join(parts)}</svg>'

    def _rows(self) -> list[tuple[str, list[list[str]]]]:
        """The name of each row and its cells, a list of lines each."""
        rows = [(topic, [_given_cell(event, topic) for event in self.events]) for topic in self.inputs]
        rows += [(topic, [_output_cell(event, topic) for event in self.events]) for topic in self.outputs]
        if any(event.dropped for event in self.events):
            rows.append((_DROPPED, [list(event.dropped) for event in self.events]))
        return rows

    def _head(self) -> int:
        return max(len(name) for name, _ in self._rows())

    def _widths(self) -> list[int]:
        columns = zip(*(cells for _, cells in self._rows()), strict=True)
        return [max((len(text) for cell in column for text in cell), default=0) for column in columns]


def _given_cell(event: Event, topic: str) -> list[str]:
    if isinstance(event.given, timedelta):
        return [f"+{event.given // timedelta(milliseconds=1)}"] if topic == _CLOCK else []
    return [_cell(event.given.record)] if event.given.topic == topic else []


def _output_cell(event: Event, topic: str) -> list[str]:
    return [_cell(output.record) for output in event.outputs if output.topic == topic]


def _cell(record: Record[Any, Any]) -> str:
    """
    >>> _cell(Record("a", 5, 10)), _cell(Record(None, None, 3))
    ('a:5@10', 'null@3')
    """
    key = "" if record.key is None else f"{_text(record.key)}:"
    return f"{key}{_text(record.value)}@{record.timestamp}"


def _text(thing: Any) -> str:
    if isinstance(thing, Windowed):
        key, (start, end) = cast("Windowed[Any]", thing)
        return f"{_text(key)}[{start},{end}]"
    return "null" if thing is None else str(thing)


def timeline(
    topology: Topology, inputs: Iterable[Input], *, config: Mapping[str, Any] | None = None, wall_clock: int = 0
) -> Timeline:
    """Runs a topology in the test driver and returns what went in and what came out.

    An input is `(topic, key, value, timestamp)`, or a `timedelta`, which advances the wall clock. Keys and values are
    encoded and decoded by the serdes of the topology's sources and sinks.

    >>> from headrace import StreamsBuilder, serde
    >>> builder = StreamsBuilder()
    >>> prices = builder.stream("prices", key=serde.STRING, value=serde.LONG)
    >>> prices.filter(lambda price: price > 10).to("high")
    >>> print(timeline(builder.build(), [("prices", "a", 5, 0), ("prices", "b", 20, 10)]))
    prices  a:5@0  b:20@10
    high           b:20@10
    """
    with TopologyTestDriver(topology, config, wall_clock) as driver:
        return Timeline(*_play(driver, list(inputs)))


def _play(
    driver: TopologyTestDriver, inputs: Sequence[Input]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Event, ...]]:
    graph, serdes = driver.graph, driver.serdes
    sources = [node for node in graph.nodes.values() if isinstance(node, Source)]
    reads = {topic: _pair(serdes, source, topic) for source in sources for topic in source.topics}
    sinks = [node for node in graph.nodes.values() if isinstance(node, Sink)]
    writes = {node.topic: _pair(serdes, node, node.topic) for node in sinks if isinstance(node.topic, str)}
    chosen = [node for node in sinks if not isinstance(node.topic, str)]
    topics = [_CLOCK if isinstance(given, timedelta) else given[0] for given in inputs]
    outputs = {topic: None for topic in writes if topic not in graph.internal_topics}
    events = list[Event]()
    for given in inputs:
        before = driver.metrics()
        if isinstance(given, timedelta):
            driver.advance_wall_clock(given)
            record = given
        else:
            topic, key, value, timestamp = given
            driver.input_topic(topic, *reads.get(topic, (None, None))).pipe(key, value, timestamp=timestamp)
            record = TopicRecord(topic, Record(key, value, timestamp))
        found = list[TopicRecord]()
        for topic in sorted(driver.produced_topics - driver.internal_topics):
            outputs[topic] = None
            pair = writes.get(topic) or (_pair(serdes, chosen[0], topic) if chosen else (None, None))
            found += [TopicRecord(topic, record) for record in driver.output_topic(topic, *pair).read_records()]
        events.append(Event(record, tuple(found), tuple(_new_drops(before, driver.metrics()))))
    return tuple(dict.fromkeys(topics)), tuple(outputs), tuple(events)


def _pair(serdes: Serdes, node: Source | Sink, topic: str) -> tuple[Serde[Any], Serde[Any]]:
    return serdes.key(node.key, topic), serdes.value(node.value, topic)


def _new_drops(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    prefix = "dropped-records-total/"
    return [
        name.removeprefix(prefix)
        for name, count in now.items()
        if name.startswith(prefix)
        for _ in range(count - before.get(name, 0))
    ]
