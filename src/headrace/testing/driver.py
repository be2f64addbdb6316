"""Run a topology in a test: no log, no Spark, no waiting."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.config import Config
from headrace.config.properties import read_properties
from headrace.errors import InvalidStateStoreError, StreamsError
from headrace.model.ids import TaskId
from headrace.model.record import Record, headers_of
from headrace.model.timestamps import epoch_milliseconds
from headrace.model.windows import milliseconds
from headrace.runtime.environment import Output, Result, Row
from headrace.runtime.operators.source_sink import Decoded
from headrace.runtime.serdes import serdes_of
from headrace.runtime.task import Task, TaskEnvironment
from headrace.runtime.time_heap import TimeHeap
from headrace.serde.protocol import Serde
from headrace.state.engine import MemoryEngine, Version
from headrace.topology.builder import Topology
from headrace.topology.graph import Graph

NOT_READ = -1  # the time of a queue whose first record was left out: it goes first, as in Kafka Streams


class TopologyTestDriver:
    """A topology as one task with one partition of every topic; a batch is one record, as in Kafka Streams' own driver.

    >>> from headrace import StreamsBuilder, serde
    >>> builder = StreamsBuilder()
    >>> _ = builder.stream("in", value=serde.STRING).map_values(str.upper).to("out", value=serde.STRING)
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("in", value=serde.STRING).pipe("hello", timestamp=0)
    ...     driver.output_topic("out", value=serde.STRING).read_values()
    ['HELLO']
    """

    def __init__(
        self, topology: Topology, config: Mapping[str, Any] | str | Path | None = None, wall_clock: int | datetime = 0
    ) -> None:
        self._config = Config.of({"application.id": "test", **as_settings(config)})
        self._clock = wall_clock if type(wall_clock) is int else epoch_milliseconds(wall_clock, "wall_clock")
        self._graph = topology.configured(self._config).graph()
        self._dropped, self._version, self._failed = Counter[str](), 0, False
        self._offsets, self._produced = Counter[str](), dict[str, deque[Output]]()
        self._queues, self._heads = dict[str, deque[Row]](), dict[str, tuple[Row, Decoded | None]]()
        self._waiting = TimeHeap[str]()
        self._serdes = serdes_of(self._config)
        of_globals = list(global_nodes(self._graph))
        self._globals = self._task(-1, of_globals, {}) if of_globals else None
        stores: Mapping[str, Any] = self._globals.state.stores if self._globals else {}
        own = [name for name in self._graph.nodes if name not in of_globals]
        self._task_of_all = self._task(0, own, stores)

    def _task(self, number: int, nodes: list[str], stores: Mapping[str, Any]) -> Task:
        around = TaskEnvironment(self._config, stores, one_partition)
        return Task(TaskId(max(0, number), 0), self._graph, nodes, MemoryEngine(), around, clock=self._clock)

    # ------------------------------------------------------------------------------------------------ for tests
    def input_topic(self, topic: str, key: Serde | None = None, value: Serde | None = None) -> TestInputTopic:
        """A topic to pipe records into; without serdes the defaults of the configuration are used."""
        return TestInputTopic(self, topic, self._serdes.key(key), self._serdes.value(value))

    def output_topic(self, topic: str, key: Serde | None = None, value: Serde | None = None) -> TestOutputTopic:
        """A topic to read what was produced from."""
        return TestOutputTopic(self, topic, self._serdes.key(key), self._serdes.value(value))

    def advance_wall_clock(self, duration: int | timedelta) -> None:
        """Lets time pass, and what it makes due happen."""
        self._clock += milliseconds(duration, "the advance of the wall clock")
        with self._watched():
            self._step(None, None)
            self._drain()

    @property
    def wall_clock(self) -> int:
        return self._clock

    @property
    def stores(self) -> Mapping[str, Any]:
        """All stores by name, global ones too."""
        return {**self._task_of_all.state.stores, **(self._globals.state.stores if self._globals else {})}

    def store(self, name: str) -> Any:
        found = self.stores.get(name)
        if found is None:
            have = ", ".join(sorted(self.stores)) or "none"
            raise InvalidStateStoreError(f"the topology has no store {name!r} (it has: {have})")
        return found

    @property
    def produced_topics(self) -> set[str]:
        """The names of the topics that something was produced to, internal ones too."""
        return set(self._produced)

    def metrics(self) -> dict[str, int]:
        """`dropped-records-total`, and the same by reason."""
        by_reason = {f"dropped-records-total/{reason}": count for reason, count in sorted(self._dropped.items())}
        return {"dropped-records-total": self._dropped.total(), **by_reason}

    def close(self) -> None:
        """Closes processors and stores; after an error it raises no second one."""
        failed: list[StreamsError] = []
        for task in (self._task_of_all, self._globals):
            try:
                if task:
                    task.close()
            except StreamsError as error:
                failed.append(error)
        if failed and not self._failed:
            raise failed[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ how it goes round
    def pipe_row(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Any) -> None:
        reads = [task for task in (self._task_of_all, self._globals) if task and task.reads(topic)]
        if not reads:
            raise ValueError(f"no source of the topology reads the topic {topic!r}")
        with self._watched():
            self._take_in(topic, key, value, timestamp, headers)
            self._drain()

    @contextmanager
    def _watched(self) -> Generator[None]:
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    def _take_in(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Any) -> None:
        """A record arrives: for a global store at once, else at the end of its topic's queue."""
        row: Row = (topic, 0, self._offsets[topic], key, value, timestamp, headers, None)
        self._offsets[topic] += 1
        if self._globals and self._globals.reads(topic):
            decoded = self._globals.read(row)
            self._pass_on(self._globals.step(row, decoded, clock=self._clock, version=self._next_version()))
            return
        self._queues.setdefault(topic, deque()).append(row)
        if topic not in self._heads:
            self._look_at_head(topic)

    def _look_at_head(self, topic: str) -> None:
        """Decodes the next record of a topic, so that its time is known; records that are left out are passed over."""
        queue, decoded, row = self._queues[topic], None, None
        while queue and decoded is None:
            row = queue.popleft()
            decoded = self._task_of_all.read(row)
        if row is not None:
            self._heads[topic] = (row, decoded)
            self._waiting.push(NOT_READ if decoded is None else decoded[2], topic)

    def _drain(self) -> None:
        """Processes what waits, smallest timestamp first, until nothing does."""
        while len(self._waiting):
            _, topic = self._waiting.pop()
            head = self._heads.pop(topic)
            self._look_at_head(topic)
            self._step(*head)

    def _step(self, row: Row | None, decoded: Decoded | None) -> None:
        self._pass_on(self._task_of_all.step(row, decoded, clock=self._clock, version=self._next_version()))

    def _pass_on(self, result: Result) -> None:
        """To the topics that it was produced to, and from there to whoever reads them."""
        self._dropped.update(result.dropped)
        for output in result.outputs:
            topic, _, key, value, timestamp, headers, _ = output
            self._produced.setdefault(topic, deque()).append(output)
            if self._task_of_all.reads(topic) or (self._globals and self._globals.reads(topic)):
                self._take_in(topic, key, value, timestamp, headers)

    def _next_version(self) -> Version:
        self._version += 1
        return Version(self._version, "driver")

    def take(self, topic: str) -> Iterator[Output]:
        """Takes what was produced to a topic off it."""
        queue = self._produced.get(topic, deque())
        while queue:
            yield queue.popleft()


class TestInputTopic:
    """Pipes records into a topic."""

    __test__ = False  # not a test class, whatever its name

    def __init__(self, driver: TopologyTestDriver, topic: str, key: Serde, value: Serde) -> None:
        self._driver, self.topic, self._key, self._value = driver, topic, key, value

    def pipe(
        self,
        *key_and_value: Any,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None:
        """`pipe(value)` or `pipe(key, value)`; without a timestamp it is the driver's wall clock."""
        if not 1 <= len(key_and_value) <= 2:
            raise TypeError(f"pipe takes a value, or a key and a value, not {len(key_and_value)} things")
        key, value = key_and_value if len(key_and_value) == 2 else (None, key_and_value[0])
        at = self._driver.wall_clock if timestamp is None else timestamp
        self._driver.pipe_row(
            self.topic,
            None if key is None else self._key.encode(key),
            None if value is None else self._value.encode(value),
            at if type(at) is int else epoch_milliseconds(at, "the timestamp"),
            headers_of(headers),
        )

    def pipe_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.pipe(record.key, record.value, timestamp=record.timestamp, headers=record.headers)


class TestOutputTopic:
    """Reads what was produced to a topic; what is read is taken off."""

    __test__ = False

    def __init__(self, driver: TopologyTestDriver, topic: str, key: Serde, value: Serde) -> None:
        self._driver, self.topic, self._key, self._value = driver, topic, key, value

    def read_records(self) -> list[Record]:
        return [self._record(output) for output in self._driver.take(self.topic)]

    def read_record(self) -> Record:
        """The next record; an error if there is none."""
        for output in self._driver.take(self.topic):
            return self._record(output)
        raise StreamsError(f"nothing is left to read in the topic {self.topic!r}")

    def read_key_values(self) -> list[tuple[Any, Any]]:
        return [(record.key, record.value) for record in self.read_records()]

    def read_values(self) -> list[Any]:
        return [record.value for record in self.read_records()]

    def read_table(self) -> dict[Any, Any]:
        """The last value of every key; keys whose last value is None are not there."""
        table = dict(self.read_key_values())
        return {key: value for key, value in table.items() if value is not None}

    def _record(self, output: Output) -> Record:
        _, _, key, value, timestamp, headers, _ = output
        return Record(
            None if key is None else self._key.decode(key),
            None if value is None else self._value.decode(value),
            timestamp,
            headers,
        )


def one_partition(topic: str) -> int:
    return 1


def global_nodes(graph: Graph) -> Iterator[str]:
    """The sources of global stores, and what is below them."""
    for source in graph.global_stores.values():
        yield source
        yield from graph.children[source]


def as_settings(config: Mapping[str, Any] | str | Path | None) -> Mapping[str, Any]:
    return read_properties(config) if isinstance(config, (str, Path)) else config or {}
