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
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, cast, overload

from typing_extensions import TypeVar

from headrace.config import Config
from headrace.config.properties import read_properties
from headrace.errors import InvalidStateStoreError, StreamsError
from headrace.hints import explain_names, guess
from headrace.log.protocol import Closeable
from headrace.model.ids import TaskId
from headrace.model.record import Headers, Record, headers_of
from headrace.model.sink import TOPIC_PREFIX, sink_topic
from headrace.model.timestamps import epoch_milliseconds
from headrace.model.windows import milliseconds
from headrace.query.traces import Trace
from headrace.runtime.environment import DroppedRecord, Result
from headrace.runtime.punctuation import TimeHeap
from headrace.runtime.rows import Decoded, Inputs, Order, Output, Row
from headrace.runtime.serdes import register_schemas, serdes_of
from headrace.runtime.task import Task, TaskEnvironment
from headrace.runtime.tracing import Tracer, find_partition, trace_order
from headrace.serde.protocol import Serde, decode_part, encode_part
from headrace.state.engine import Engine, MemoryEngine, Version
from headrace.state.spec import StoreSpec, store_name
from headrace.testing.faults import FaultInjector
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

    With `faults`, a seed, the driver runs the topology as production may: it aborts batches and runs them again, undoes
    commits, loses state and restores it, and cuts the input into batches in other ways where that may not matter. The
    output must not change. A batch that does something else the second time is an `AssertionError`: a processor keeps
    state in its attributes, or a function uses the time of day or chance. The same seed gives the same faults.

    >>> from headrace import StreamsBuilder, serde
    >>> builder = StreamsBuilder()
    >>> _ = builder.stream("in", value=serde.STRING).map_values(str.upper).to("out", value=serde.STRING)
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("in", value=serde.STRING).pipe("hello", timestamp=0)
    ...     driver.output_topic("out", value=serde.STRING).read_values()
    ['HELLO']
    """

    def __init__(
        self,
        topology: Topology,
        config: Mapping[str, Any] | str | Path | None = None,
        wall_clock: int | datetime = 0,
        *,
        faults: int | None = None,
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
        self._of_globals = list(global_nodes(self.graph))
        self._globals = self._make_global_task(MemoryEngine()) if self._of_globals else None
        self._faults = None if faults is None else FaultInjector(faults, self._make_task)
        self._can_cut, self._holds_back = self._faults is not None and self._cuts_do_not_matter(), False
        self._task_of_all = self._make_task(MemoryEngine()) if self._faults is None else self._faults.task

    def _make_global_task(self, engine: Engine, tracer: Tracer | None = None) -> Task:
        around = TaskEnvironment(self._config, {}, one_partition, postpones=False, tracer=tracer)
        return Task(TaskId(0, 0), self.graph, self._of_globals, engine, around, clock=self._clock)

    def _make_task(self, engine: Engine, tracer: Tracer | None = None) -> Task:
        stores: Mapping[str, Any] = self._globals.state.stores if self._globals else {}
        around = TaskEnvironment(
            self._config, stores, one_partition, postpones=False, side_effects=tracer is None, tracer=tracer
        )
        own = [name for name in self.graph.nodes if name not in self._of_globals]
        return Task(TaskId(0, 0), self.graph, own, engine, around, clock=self._clock)

    def _cuts_do_not_matter(self) -> bool:
        """True if several records in one batch give what they give one by one.

        A cache lets the last change of a key out once a batch, and what a topology reads again waits for the end of the
        batch: then it matters.
        """
        graph, caching = self.graph, self._config.statestore_cache_max_bytes > 0
        sinks = [node.topic for node in graph.nodes.values() if isinstance(node, Sink)]
        sources = [node for node in graph.nodes.values() if isinstance(node, Source)]
        read = {topic for source in sources for topic in source.topics}
        is_closed = all(isinstance(topic, str) and topic not in read for topic in sinks)
        has_cache = caching and any(spec.caching for spec in graph.stores.values())
        return is_closed and not graph.internal_topics and not has_cache and not any(node.pattern for node in sources)

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
            self._run(None)
            self._drain()

    @property
    def faults(self) -> int:
        """How many faults the driver has injected."""
        return 0 if self._faults is None else self._faults.count

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
        return found if self._faults is None else _LiveStore(self, name)

    def trace(
        self,
        topic: str,
        *key_and_value: Any,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> Trace:
        """The way that a record would take now: `trace(topic, value)` or `trace(topic, key, value)`. It has no effect.

        The record meets the driver's current state: stores, stream time and offsets. Processors are made anew, as after
        a restart. The functions of `foreach` and `peek` are not called. Print the result, or look at its `steps`.

        >>> from headrace import StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> orders = builder.stream("orders", key=serde.STRING, value=serde.LONG, name="orders")
        >>> orders.filter(lambda amount: amount > 10, name="large").to("large-orders", name="out")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     print(driver.trace("orders", "ada", 20, timestamp=5))
        orders/0 at offset 0, traced in the driver's current state
        <BLANKLINE>
        task 0_0
          orders  Source  'ada': 20 at 5
            large  Filter  'ada': 20 at 5
              out  Sink  'ada': 20 at 5
                wrote to large-orders/0
        """
        sources = [node for node in self.graph.nodes.values() if isinstance(node, Source)]
        source = next((node for node in sources if topic in node.topics), None)
        key, value = (None, None) if source is None else (source.key, source.value)
        given = TestInputTopic(self, topic, self.serdes.key(key, topic), self.serdes.value(value, topic))
        return given.trace(*key_and_value, timestamp=timestamp, headers=headers)

    def trace_row(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Any) -> Trace:
        """Trace a record in a copy of the state; `TestInputTopic.trace` calls it."""
        self._check_read(topic)
        tracer, offset, failed, before = Tracer(), self._offsets[topic], None, dict(vars(self))
        try:
            self._trace_in_copy(tracer)
            try:
                self._take_in(topic, key, value, timestamp, headers, trace_order(()))
                self._drain()
            except StreamsError as error:
                failed = str(error)
            with suppress(StreamsError):
                self.close()
        finally:
            vars(self).update(before)
        for step in tracer.steps:
            step.outputs = [output._replace(partition=find_partition(output, 1, 0)) for output in step.outputs]
            if step.kind in {"Foreach", "Peek"}:
                step.note = "its function is not called"
        state = "the driver's current state"
        return Trace(topic, 0, offset, None, state, tuple(tracer.steps), self.graph, (), failed)

    def _trace_in_copy(self, tracer: Tracer) -> None:
        """Go on with a copy of the state and without the records that wait to be read; the tasks are traced."""
        self._dropped, self.drops, self._produced, self._faults = Counter[str](), [], {}, None
        self._queues, self._heads, self._waiting = {}, {}, TimeHeap[str]()
        self._offsets = Counter(self._offsets)
        if self._globals is not None:
            self._globals = self._make_global_task(_copy_engine(self._globals, self._next()), tracer)
        self._task_of_all = self._make_task(_copy_engine(self._task_of_all, self._next()), tracer)

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
        self._check_read(topic)
        with self._watched():
            self._take_in(topic, key, value, timestamp, headers)
            if not self._holds_back:
                self._drain()

    @contextmanager
    def piping_many(self) -> Generator[None]:
        """Take records in before the first is processed, if the driver may cut them into batches as it likes."""
        self._holds_back = self._can_cut
        try:
            yield
        finally:
            self._holds_back = False
            with self._watched():
                self._drain()

    def _check_read(self, topic: str) -> None:
        reads = [task for task in (self._task_of_all, self._globals) if task and task.reads(topic)]
        if not reads:
            topics = {name for node in self.graph.nodes.values() if isinstance(node, Source) for name in node.topics}
            raise ValueError(f"no source of the topology reads the topic {topic!r}{_hint(topic, topics, 'reads')}")

    @contextmanager
    def _watched(self) -> Generator[None]:
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    def _take_in(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Any, order: Order = ()
    ) -> None:
        """Process a record of a global store at once; put any other at the end of its topic's queue."""
        row: Row = (topic, 0, self._offsets[topic], key, value, timestamp, headers, order)
        self._offsets[topic] += 1
        self._take_row(row)

    def _take_row(self, row: Row) -> None:
        topic = row[0]
        if self._globals and self._globals.reads(topic):
            head = self._globals.read(row)
            self._pass_on(self._globals, self._globals.run(one_record(head), clock=self._clock, version=self._next()))
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
            row = queue.popleft()
            head = self._task_of_all.read(row) if self._faults is None else self._faults.read(row)
        self._heads[topic] = head
        self._waiting.push(NOT_READ if head is None else head[3], topic)

    def _drain(self) -> None:
        """Process waiting records, smallest timestamp first, until none is left."""
        while len(self._waiting):
            _, topic = self._waiting.pop()
            head = self._heads.pop(topic)
            self._look_at_head(topic)
            if self._faults is None or head is None:
                self._run(head)
            else:
                self._run_cut(self._faults, topic, head)

    def _run_cut(self, faults: FaultInjector, topic: str, head: Decoded) -> None:
        """Run a batch of one record, or of several that wait in the topic if that may not matter."""
        heads, queue = [head], self._queues[topic]
        wanted = faults.cut(1 + len(queue)) if self._can_cut and len(self._waiting) == 1 else 1
        while len(heads) < wanted and self._heads.get(topic) is not None:
            self._waiting.pop()
            heads += [head for head in [self._heads.pop(topic)] if head is not None]
            self._look_at_head(topic)
        try:
            result = self._run_with_faults(faults, heads)
        except StreamsError:
            if len(heads) == 1:
                raise
            self._run_one_by_one(faults, heads)  # those before the one that fails count
            return
        self._pass_on(self._task_of_all, result)

    def _run_one_by_one(self, faults: FaultInjector, heads: list[Decoded]) -> None:
        faults.recover(heads, [])
        self._task_of_all = faults.task
        while heads:
            first, later = heads[:1], heads[1:]
            result = self._run_with_faults(faults, first, later)
            self._pass_on(self._task_of_all, result)
            heads = later

    def _run(self, head: Decoded | None) -> None:
        """Run a batch of one record, or of none."""
        if self._faults is None:
            result = self._task_of_all.run(one_record(head), clock=self._clock, version=self._next())
        else:
            result = self._run_with_faults(self._faults, [] if head is None else [head])
        self._pass_on(self._task_of_all, result)

    def _run_with_faults(
        self, faults: FaultInjector, heads: list[Decoded], later: list[Decoded] | None = None
    ) -> Result:
        """Run a batch with faults. `later` and the heads of all topics follow the task that is made anew."""
        later = [] if later is None else later
        topics = [topic for topic, head in self._heads.items() if head is not None]
        waiting = [*later, *(head for head in self._heads.values() if head is not None)]
        try:
            if heads and faults.wants_empty_batch:
                both = [*heads, *waiting]
                self._pass_on(faults.task, faults.run([], both, self._clock, self._next()))
                heads[:], waiting = both[: len(heads)], both[len(heads) :]
            return faults.run(heads, waiting, self._clock, self._next())
        finally:
            self._task_of_all = faults.task
            later[:] = waiting[: len(later)]
            self._heads.update(zip(topics, waiting[len(later) :], strict=True))

    def _pass_on(self, task: Task, result: Result) -> None:
        """Append outputs to their topics, and take them in again where a source reads the topic."""
        self._dropped.update(result.dropped)
        self.drops += result.drops
        traced = {} if task.tracer is None else task.tracer.take_outputs()
        for place, output in enumerate(result.outputs):
            topic, _, key, value, timestamp, headers, _ = output
            self._produced.setdefault(topic, deque()).append(output)
            if self._task_of_all.reads(topic) or (self._globals and self._globals.reads(topic)):
                order = trace_order((), traced[place]) if place in traced else ()
                self._take_in(topic, key, value, timestamp, headers, order)

    def _next(self) -> Version:
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
        letters = self._config.errors_dead_letter_queue_topic_name, self._config.dropped_records_topic_name
        written.update(filter(None, letters), self._produced)
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
        raw_key, raw_value, pairs = self._encode("pipe", key_and_value, headers)
        time = self._next_time() if timestamp is None else epoch_time(timestamp, "the timestamp")
        self._driver.pipe_row(self.topic, raw_key, raw_value, time, pairs)

    def trace(
        self,
        *key_and_value: Any,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> Trace:
        """The way that a record would take if it were piped now; nothing is piped. See `TopologyTestDriver.trace`."""
        raw_key, raw_value, pairs = self._encode("trace", key_and_value, headers)
        now = self._driver.wall_clock if self._time is None else self._time
        time = now if timestamp is None else epoch_time(timestamp, "the timestamp")
        return self._driver.trace_row(self.topic, raw_key, raw_value, time, pairs)

    def _encode(
        self, method: str, key_and_value: Sequence[Any], headers: Iterable[tuple[str, bytes | None]]
    ) -> tuple[bytes | None, bytes | None, Headers]:
        if not 1 <= len(key_and_value) <= 2:
            raise TypeError(f"{method} takes a value, or a key and a value, not {len(key_and_value)} things")
        key, value = key_and_value if len(key_and_value) == 2 else (None, key_and_value[0])
        raw_key, pairs = encode_part(self._key, key, headers_of(headers))
        raw_value, pairs = encode_part(self._value, value, pairs)
        return raw_key, raw_value, pairs

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
        with self._driver.piping_many():
            for record in records:
                if isinstance(record, Record):
                    given = cast("Record[K | None, V | None]", record)
                    self.pipe(given.key, given.value, timestamp=given.timestamp, headers=given.headers)
                else:
                    self.pipe(record)

    def pipe_key_values(self, pairs: Iterable[tuple[K | None, V | None]]) -> None:
        """Pipe a record for each (key, value) pair."""
        with self._driver.piping_many():
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


class _LiveStore:
    """A store of a driver that injects faults: the task, and with it the store, is another object after each."""

    def __init__(self, driver: TopologyTestDriver, name: str) -> None:
        self._driver, self._name = driver, name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._driver.stores[self._name], attribute)


def _copy_engine(task: Task, version: Version) -> MemoryEngine:
    """A copy of the state of a task, with what a test has put into its stores."""
    engine = MemoryEngine()
    entries = dict(task.state.engine.scan(b"", None))
    entries |= {key: value for key, value in task.state.changes() if value is not None}
    for key, value in task.state.changes():
        if value is None:
            entries.pop(key, None)
    engine.commit(sorted(entries.items()), version)
    return engine


def one_record(head: Decoded | None) -> Inputs:
    return Inputs(decoded=[] if head is None else [head])


def one_partition(topic: str) -> int:
    return 1


def epoch_time(time: int | datetime, what: str) -> int:
    """A time in milliseconds since the epoch; `what` names it in an error.

    >>> epoch_time(5, "the start")
    5
    """
    return time if type(time) is int else epoch_milliseconds(time, what)
