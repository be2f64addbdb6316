"""Run a topology in a test: no log, no Spark, no waiting.

    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("lines", value=serde.STRING).pipe("hello world", timestamp=0)
        counts = driver.output_topic("counts", key=serde.STRING, value=serde.LONG)
        assert counts.read_table() == {"hello": 1, "world": 1}

The driver runs the topology as one task with one partition of every topic. A batch is one record: the driver commits
after each record, as Kafka Streams' driver does, so `context.commit()` asks for what happens anyway.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, cast, overload

from typing_extensions import TypeVar

from headrace.config import Config
from headrace.config.properties import read_properties
from headrace.errors import InvalidStateStoreError, StreamsError
from headrace.hints import explain_names, guess
from headrace.log.base import Closeable
from headrace.model.ids import TaskId
from headrace.model.record import Record, headers_of
from headrace.model.sink import TOPIC_PREFIX, sink_topic
from headrace.model.timestamps import epoch_milliseconds
from headrace.model.windows import milliseconds
from headrace.runtime.environment import DroppedRecord, Result
from headrace.runtime.punctuation import TimeHeap
from headrace.runtime.rows import Decoded, Inputs, Output, Row
from headrace.runtime.serdes import register_schemas, serdes_of
from headrace.runtime.task import Task, TaskEnvironment
from headrace.serde.protocol import Serde, decode_part, encode_part
from headrace.state.engine import MemoryEngine, Version
from headrace.state.spec import StoreSpec, store_name
from headrace.topology.builder import Topology
from headrace.topology.nodes import Sink, Source
from headrace.topology.subtopologies import global_nodes

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
S = TypeVar("S")

NOT_READ = -1  # the time of a queue whose first record was dropped: it goes first, as in Kafka Streams


@explain_names(
    {
        "create_input_topic": "input_topic(topic, key=, value=)",
        "create_output_topic": "output_topic(topic, key=, value=)",
        "advance_wall_clock_time": "advance_wall_clock(duration)",
        "get_state_store": "store(name)",
        "get_key_value_store": "store(name)",
        "get_timestamped_key_value_store": "store(name)",
        "get_versioned_key_value_store": "store(name)",
        "get_window_store": "store(name)",
        "get_timestamped_window_store": "store(name)",
        "get_session_store": "store(name)",
        "get_all_state_stores": "stores",
        "produced_topic_names": "produced_topics",
        "pipe_input": "input_topic(topic, key=, value=).pipe(key, value)",
        "read_output": "output_topic(topic, key=, value=).read_record()",
    },
    {"start_timestamp": "start", "auto_advance": "advance", "initial_wall_clock_time": "wall_clock"},
)
class TopologyTestDriver(Closeable):
    """Runs a topology in memory, one record at a time.

    `config` has Kafka Streams' names, or is the path of a properties file. `wall_clock` is the time at which the test
    begins, in milliseconds or as a `datetime`; only `advance_wall_clock` moves it.

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
        if not isinstance(topology, Topology):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"TopologyTestDriver needs a Topology, as builder.build() makes it, not {topology!r}")
        settings = read_properties(config) if isinstance(config, (str, Path)) else config or {}
        self._config = Config.of({"application.id": "test", **settings})
        self._clock = epoch_time(wall_clock, "wall_clock")
        self.graph = topology.configured(self._config).graph()
        self._dropped, self._version, self._failed = Counter[str](), 0, False
        self.drops = list[DroppedRecord]()  # every dropped record, with the operator and the reason
        self._offsets, self._produced = Counter[str](), dict[str, deque[Output]]()
        self._queues, self._heads = dict[str, deque[Row]](), dict[str, Decoded | None]()
        self._waiting = TimeHeap[str]()
        self.serdes = serdes_of(self._config)
        register_schemas(self.graph, self._config)
        of_globals = list(global_nodes(self.graph))
        self._globals = self._task(-1, of_globals, {}) if of_globals else None
        stores: Mapping[str, Any] = self._globals.state.stores if self._globals else {}
        own = [name for name in self.graph.nodes if name not in of_globals]
        self._task_of_all = self._task(0, own, stores)

    def _task(self, number: int, nodes: list[str], stores: Mapping[str, Any]) -> Task:
        around = TaskEnvironment(self._config, stores, one_partition, postpones=False)
        return Task(TaskId(max(0, number), 0), self.graph, nodes, MemoryEngine(), around, clock=self._clock)

    # ------------------------------------------------------------------------------------------------ for tests
    def input_topic(
        self,
        topic: str,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        *,
        start: int | datetime | None = None,
        advance: int | timedelta = 0,
    ) -> TestInputTopic[K, V]:
        """A topic to pipe records into; without serdes the defaults of the configuration are used.

        A record that is piped without a timestamp gets the driver's wall clock. With `start` it gets that time
        instead, and each record moves the time by `advance`; `advance` alone starts at the wall clock.

        >>> from headrace import StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", value=serde.STRING).to("out", value=serde.STRING)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("in", value=serde.STRING, start=100, advance=10).pipe_all(["a", "b", "c"])
        ...     [record.timestamp for record in driver.output_topic("out").read_records()]
        [100, 110, 120]
        """
        step = milliseconds(advance, f"the advance of the input topic {topic!r}")
        now = self._clock if start is None and step else start
        time = None if now is None else epoch_time(now, f"the start of the input topic {topic!r}")
        return TestInputTopic(self, topic, self.serdes.key(key, topic), self.serdes.value(value, topic), time, step)

    def output_topic(
        self, topic: str, key: Serde[K] | None = None, value: Serde[V] | None = None
    ) -> TestOutputTopic[K, V]:
        """A topic to read records from; without serdes the defaults of the configuration are used.

        >>> from headrace import StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> builder.stream("in").to("out")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.output_topic("oout").read_values()
        Traceback (most recent call last):
        ValueError: no sink of the topology writes the topic 'oout': did you mean 'out'? (it writes: out)
        """
        return TestOutputTopic(self, topic, self.serdes.key(key, topic), self.serdes.value(value, topic))

    def sink_records(self, name: str) -> list[Record]:
        """The records that have gone to a sink for another system, with their keys and values. Nothing is written.

        `name` is that of `stream.sink(…, name=…)`, or else the sink's own. Every record is returned once.

        >>> from headrace import StreamsBuilder, serde
        >>> from headrace.connect import FileSink
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", value=serde.STRING).map_values(len).sink(FileSink("/data/lengths"))
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("in", value=serde.STRING).pipe("hello", timestamp=0)
        ...     driver.sink_records("lengths")
        [Record(key=None, value=5, timestamp=0, headers=())]
        """
        sinks = [node for node in self.graph.nodes.values() if isinstance(node, Sink) and node.target is not None]
        node = next((node for node in sinks if node.topic == sink_topic(name)), None)
        if node is None:
            known = {str(sink.topic).removeprefix(TOPIC_PREFIX) for sink in sinks}
            raise ValueError(f"the topology has no sink {name!r}{_hint(name, known, 'has')}")
        topic = sink_topic(name)
        key, value = self.serdes.key(node.key, topic), self.serdes.value(node.value, topic)
        return TestOutputTopic(self, topic, key, value).read_records()

    def advance_wall_clock(self, duration: int | timedelta) -> None:
        """Move the wall clock forward by milliseconds or a `timedelta`, and run what becomes due.

        >>> from headrace import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("in").to("out")
        >>> with TopologyTestDriver(builder.build(), wall_clock=5) as driver:
        ...     driver.advance_wall_clock(timedelta(seconds=1))
        ...     driver.wall_clock
        1005
        """
        self._clock += milliseconds(duration, "the advance of the wall clock")
        with self._watched():
            self._run(self._task_of_all, None)
            self._drain()

    @property
    def wall_clock(self) -> int:
        """The driver's time in milliseconds."""
        return self._clock

    @property
    def stores(self) -> Mapping[str, Any]:
        """All stores by name, global ones included."""
        return {**self._task_of_all.state.stores, **(self._globals.state.stores if self._globals else {})}

    @overload
    def store(self, store: StoreSpec[S]) -> S: ...
    @overload
    def store(self, store: str) -> Any: ...
    def store(self, store: str | StoreSpec[Any]) -> Any:
        """A store of the topology, to read and to write; given by its spec it has the spec's type.

        >>> from headrace import StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> table = builder.table("prices", key=serde.STRING, value=serde.LONG, store="prices")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("prices", key=serde.STRING, value=serde.LONG).pipe("tea", 2, timestamp=7)
        ...     driver.store("prices").get("tea")
        ValueAndTimestamp(value=2, timestamp=7)
        """
        name = store_name(store)
        found = self.stores.get(name)
        if found is None:
            have = ", ".join(sorted(self.stores)) or "none"
            raise InvalidStateStoreError(f"the topology has no store {name!r} (it has: {have})")
        return found

    @property
    def internal_topics(self) -> set[str]:
        """The names of the repartition topics and of the topics inside foreign-key joins."""
        return {self._task_of_all.topic_name(topic) for topic in self.graph.internal_topics}

    @property
    def produced_topics(self) -> set[str]:
        """The names of the topics that the topology has produced to, internal ones included."""
        return set(self._produced)

    def metrics(self) -> dict[str, int]:
        """`dropped-records-total` of all nodes, and the same by reason as `dropped-records-total/reason`.

        >>> from headrace import StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> table = builder.stream("in", key=serde.STRING).group_by_key().count()
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("in").pipe(None, b"no key")
        ...     driver.metrics()
        {'dropped-records-total': 1, 'dropped-records-total/null key or value': 1}
        """
        by_reason = {f"dropped-records-total/{reason}": count for reason, count in sorted(self._dropped.items())}
        return {"dropped-records-total": self._dropped.total(), **by_reason}

    def close(self) -> None:
        """Close processors and stores; after an error it raises no second one."""
        failed: list[StreamsError] = []
        for task in (self._task_of_all, self._globals):
            try:
                if task:
                    task.close()
            except StreamsError as error:
                failed.append(error)
        if failed and not self._failed:
            raise failed[0]

    # -------------------------------------------------------------------------------------- how records go round
    def pipe_row(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Any) -> None:
        """Take a record in, and process until nothing waits; `TestInputTopic.pipe` calls it."""
        reads = [task for task in (self._task_of_all, self._globals) if task and task.reads(topic)]
        if not reads:
            topics = {name for node in self.graph.nodes.values() if isinstance(node, Source) for name in node.topics}
            raise ValueError(f"no source of the topology reads the topic {topic!r}{_hint(topic, topics, 'reads')}")
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
        """Process a record of a global store at once; put any other at the end of its topic's queue."""
        row: Row = (topic, 0, self._offsets[topic], key, value, timestamp, headers, ())
        self._offsets[topic] += 1
        if self._globals and self._globals.reads(topic):
            self._run(self._globals, self._globals.read(row))
            return
        self._queues.setdefault(topic, deque()).append(row)
        if topic not in self._heads:
            self._look_at_head(topic)

    def _look_at_head(self, topic: str) -> None:
        """Decode the next record of a topic, so that its time is known; pass over records that are dropped."""
        queue, head = self._queues[topic], None
        if not queue:
            return
        while queue and head is None:
            head = self._task_of_all.read(queue.popleft())
        self._heads[topic] = head
        self._waiting.push(NOT_READ if head is None else head[3], topic)

    def _drain(self) -> None:
        """Process waiting records, smallest timestamp first, until none is left."""
        while len(self._waiting):
            _, topic = self._waiting.pop()
            head = self._heads.pop(topic)
            self._look_at_head(topic)
            self._run(self._task_of_all, head)

    def _run(self, task: Task, head: Decoded | None) -> None:
        """Run a batch of one record, or of none."""
        inputs = Inputs(decoded=[] if head is None else [head])
        self._pass_on(task.run(inputs, clock=self._clock, version=self._next_version()))

    def _pass_on(self, result: Result) -> None:
        """Append outputs to their topics, and take them in again where a source reads the topic."""
        self._dropped.update(result.dropped)
        self.drops += result.drops
        for output in result.outputs:
            topic, _, key, value, timestamp, headers, _ = output
            self._produced.setdefault(topic, deque()).append(output)
            if self._task_of_all.reads(topic) or (self._globals and self._globals.reads(topic)):
                self._take_in(topic, key, value, timestamp, headers)

    def _next_version(self) -> Version:
        self._version += 1
        return Version(self._version, "driver")

    def queue(self, topic: str) -> deque[Output]:
        """The records of a topic that no test has read yet; `TestOutputTopic` takes them off."""
        if topic not in self._produced:
            self._check_written(topic)
        return self._produced.get(topic, deque())

    def _check_written(self, topic: str) -> None:
        """Raise an error for a topic that no sink can write: its name is probably misspelt."""
        targets = [node.topic for node in self.graph.nodes.values() if isinstance(node, Sink)]
        written = {self._task_of_all.topic_name(target) for target in targets if isinstance(target, str)}
        written.update(filter(None, [self._config.errors_dead_letter_queue_topic_name]), self._produced)
        if topic not in written and not any(callable(target) for target in targets):
            raise ValueError(f"no sink of the topology writes the topic {topic!r}{_hint(topic, written, 'writes')}")


@explain_names(
    {
        "pipe_input": "pipe(value) or pipe(key, value)",
        "pipe_value_list": "pipe_all(values)",
        "pipe_values": "pipe_all(values)",
        "pipe_key_value_list": "pipe_key_values(pairs)",
        "pipe_record_list": "pipe_all(records)",
        "pipe_records": "pipe_all(records)",
    }
)
class TestInputTopic(Generic[K, V]):
    """Pipes records into a topic: what `driver.input_topic(...)` returns.

    Every method returns when the topology has processed the records and everything that they cause.

    >>> from headrace import StreamsBuilder, serde
    >>> builder = StreamsBuilder()
    >>> builder.stream("in", key=serde.STRING, value=serde.LONG).to("out")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     numbers = driver.input_topic("in", key=serde.STRING, value=serde.LONG)
    ...     numbers.pipe("a", 1, timestamp=5)
    ...     numbers.pipe_key_values([("b", 2), ("c", 3)])
    ...     driver.output_topic("out", key=serde.STRING, value=serde.LONG).read_key_values()
    [('a', 1), ('b', 2), ('c', 3)]
    """

    __test__ = False  # pytest collects classes whose names begin with Test

    def __init__(
        self,
        driver: TopologyTestDriver,
        topic: str,
        key: Serde[K],
        value: Serde[V],
        time: int | None = None,
        advance: int = 0,
    ) -> None:
        self._driver, self.topic, self._key, self._value = driver, topic, key, value
        self._time, self._advance = time, advance

    @overload
    def pipe(
        self,
        value: V | None,
        /,
        *,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None: ...
    @overload
    def pipe(
        self,
        key: K | None,
        value: V | None,
        /,
        *,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None: ...
    def pipe(
        self,
        *key_and_value: Any,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None:
        """Pipe one record: `pipe(value)` or `pipe(key, value)`.

        Without a timestamp the record gets the time of the input topic if it has a `start`, else the wall clock.
        """
        if not 1 <= len(key_and_value) <= 2:
            raise TypeError(f"pipe takes a value, or a key and a value, not {len(key_and_value)} things")
        key, value = key_and_value if len(key_and_value) == 2 else (None, key_and_value[0])
        raw_key, pairs = encode_part(self._key, key, headers_of(headers))
        raw_value, pairs = encode_part(self._value, value, pairs)
        time = self._next_time() if timestamp is None else epoch_time(timestamp, "the timestamp")
        self._driver.pipe_row(self.topic, raw_key, raw_value, time, pairs)

    def pipe_all(self, records: Iterable[Record[K | None, V | None] | V | None]) -> None:
        """Pipe many records, each of them a `Record` or a value alone.

        >>> from headrace import StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", value=serde.STRING).to("out", value=serde.STRING)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("in", value=serde.STRING).pipe_all(["a", Record(None, "b", timestamp=9)])
        ...     driver.output_topic("out", value=serde.STRING).read_values()
        ['a', 'b']
        """
        for record in records:
            if isinstance(record, Record):
                given = cast("Record[K | None, V | None]", record)
                self.pipe(given.key, given.value, timestamp=given.timestamp, headers=given.headers)
            else:
                self.pipe(record)

    def pipe_key_values(self, pairs: Iterable[tuple[K | None, V | None]]) -> None:
        """Pipe a record for each (key, value) pair."""
        for key, value in pairs:
            self.pipe(key, value)

    def advance_time(self, duration: int | timedelta) -> None:
        """Move the time of the input topic forward, for the records that are piped without a timestamp.

        >>> from headrace import StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", value=serde.STRING).to("out", value=serde.STRING)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     words = driver.input_topic("in", value=serde.STRING, start=0)
        ...     words.pipe("a")
        ...     words.advance_time(timedelta(minutes=1))
        ...     words.pipe("b")
        ...     [record.timestamp for record in driver.output_topic("out").read_records()]
        [0, 60000]
        """
        step = milliseconds(duration, f"the advance of the input topic {self.topic!r}")
        self._time = (self._driver.wall_clock if self._time is None else self._time) + step

    def _next_time(self) -> int:
        if self._time is None:
            return self._driver.wall_clock
        now = self._time
        self._time += self._advance
        return now


@explain_names(
    {
        "read_value": "read_record().value",
        "read_key_value": "read_record()",
        "read_key_values_to_list": "read_key_values()",
        "read_values_to_list": "read_values()",
        "read_records_to_list": "read_records()",
        "read_key_values_to_map": "read_table()",
        "get_queue_size": "size",
        "queue_size": "size",
    }
)
class TestOutputTopic(Generic[K, V]):
    """Reads the records that the topology produced to a topic: what `driver.output_topic(...)` returns.

    Every method takes the records that it returns off the topic. A topic that a sink writes, and has not written to
    yet, is empty; a topic that no sink writes is an error.

    >>> from headrace import StreamsBuilder, serde
    >>> builder = StreamsBuilder()
    >>> builder.stream("in", key=serde.STRING, value=serde.LONG).to("out")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("in", key=serde.STRING, value=serde.LONG).pipe_key_values([("a", 1), ("b", 2), ("a", 3)])
    ...     out = driver.output_topic("out", key=serde.STRING, value=serde.LONG)
    ...     out.size, out.read_record().value, out.read_table(), out.is_empty
    (3, 1, {'b': 2, 'a': 3}, True)
    """

    __test__ = False

    def __init__(self, driver: TopologyTestDriver, topic: str, key: Serde[K], value: Serde[V]) -> None:
        self._driver, self.topic, self._key, self._value = driver, topic, key, value

    @property
    def size(self) -> int:
        """How many records are left to read."""
        return len(self._driver.queue(self.topic))

    @property
    def is_empty(self) -> bool:
        """True when no record is left to read."""
        return self.size == 0

    def read_records(self) -> list[Record[K, V]]:
        """All records."""
        return [self.read_record() for _ in range(self.size)]

    def read_record(self) -> Record[K, V]:
        """The next record; an error if there is none."""
        outputs = self._driver.queue(self.topic)
        if not outputs:
            raise StreamsError(f"nothing is left to read in the topic {self.topic!r}")
        _, _, key, value, timestamp, headers, _ = outputs.popleft()
        return Record(
            cast("K", decode_part(self._key, key, headers)),
            cast("V", decode_part(self._value, value, headers)),
            timestamp,
            headers,
        )

    def read_key_values(self) -> list[tuple[K, V]]:
        """The (key, value) pairs of all records."""
        return [(record.key, record.value) for record in self.read_records()]

    def read_values(self) -> list[V]:
        """The values of all records."""
        return [record.value for record in self.read_records()]

    def read_table(self) -> dict[K, V]:
        """The last value of each key; a key whose last value is None is absent."""
        table = dict(self.read_key_values())
        return {key: value for key, value in table.items() if value is not None}


def _hint(topic: str, known: set[str], verb: str) -> str:
    near = guess(topic, known)
    return f"{'' if near is None else f': did you mean {near!r}?'} (it {verb}: {', '.join(sorted(known)) or 'none'})"


def one_partition(topic: str) -> int:
    return 1


def epoch_time(time: int | datetime, what: str) -> int:
    """A time in milliseconds since the epoch; `what` names it in an error.

    >>> epoch_time(5, "the start")
    5
    """
    return time if type(time) is int else epoch_milliseconds(time, what)
