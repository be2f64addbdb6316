"""A task: one sub-topology on one partition, a function from a batch of records to outputs and a delta of the state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple

from headrace.config import Config
from headrace.errors import StreamsError
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.compile import Compiler
from headrace.runtime.environment import (
    KEPT_DROPS,
    KEY_BYTES,
    STORE,
    CurrentRecord,
    DroppedRecord,
    Emit,
    Env,
    Lookup,
    Result,
)
from headrace.runtime.failures import Failures, Place, error_headers
from headrace.runtime.lookup import Lookups
from headrace.runtime.operators.source_sink import Inlet, Outlet
from headrace.runtime.punctuation import NEVER
from headrace.runtime.rows import (
    CountOutput,
    Decoded,
    Inputs,
    MergedByTime,
    Output,
    PartitionBatch,
    Row,
    join_batches,
    merge_by_order,
)
from headrace.runtime.serdes import Serdes, explain_missing_serdes, handlers_of, resolved, serdes_of
from headrace.runtime.tracing import TaskTracer, Tracer
from headrace.state.engine import Engine, Version
from headrace.state.task_state import TaskState
from headrace.topology import nodes as n
from headrace.topology.graph import Graph
from headrace.topology.processor import Punctuation


class TaskEnvironment(NamedTuple):
    """What the host of a task provides: configuration, global stores, partition counts."""

    config: Config
    globals: Mapping[str, Any]  # global stores, by name
    partitions: Callable[[str], int | None] = lambda topic: None  # of a topic, None if not known
    combines: bool = False  # whether records for other tasks may be combined into counts
    watch: Callable[[Place], None] | None = None  # called before every call of a node with functions of the user
    postpones: bool = True  # whether the wall clock triggers emissions that `emit.interval.ms` held back
    side_effects: bool = True  # whether the functions of `foreach` and `peek` are called
    tracer: Tracer | None = None  # records the path of traced rows


class Task:
    """Runs batches. `nodes` are the names of the nodes it runs: a sub-topology, or in a test driver all of them."""

    def __init__(
        self,
        task_id: TaskId,
        graph: Graph,
        nodes: Collection[str],
        engine: Engine,
        around: TaskEnvironment,
        *,
        clock: int,
    ) -> None:
        config = around.config
        self.task_id, self._graph, self._nodes = task_id, graph, nodes
        self._application = config.application_id or ""
        self._internal_topics = frozenset(map(self.topic_name, graph.internal_topics))
        self._dropped, self._outbox, self._counts = Counter[str](), list[Output](), list[CountOutput]()
        self._drops = list[DroppedRecord]()
        self._drops_topic = config.dropped_records_topic_name
        self._last_drop: tuple[Row | None, str, str] = (None, "", "")
        self.here = CurrentRecord()
        self.here.clock = clock
        serdes = serdes_of(config)
        self.tracer: TaskTracer | None = None
        self.state = self._open(engine, serdes, config, around.tracer)
        self._stream_time = self.state.cell("task/stream time", -1)
        self.here.stream_time = self._stream_time.value
        env = self._env(config, around)
        for_globals = any(source in nodes for source in graph.global_stores.values())
        handlers = handlers_of(config, for_globals=for_globals)
        self.is_watched = around.watch is not None
        told = None if self.tracer is None else self.tracer.fail
        explain = partial(explain_missing_serdes, graph, config)
        failures = Failures(handlers, task_id, self.here, self._outbox, self._drop, around.watch, told, explain)
        outlet = Outlet(self._outbox, self._counts, self.topic_name, around.partitions, task_id.partition)
        compiler = Compiler(
            graph, task_id, env, serdes, failures, outlet, config,
            combines=around.combines, side_effects=around.side_effects, tracer=self.tracer,
        )  # fmt: skip
        self._lookups = Lookups(graph, lambda: env, compiler.buffers.suppress, compiler.transformer)
        self._program = compiler.compile(nodes)
        self._postponed = [
            (some.due, failures.guard_punctuation(some.node, lambda _, emit=some.emit: emit()))
            for some in (env.postponed if around.postpones else ())
        ]
        self._buffers = self._program.buffers
        self._flushers = [env.flushers[store] for store in self.state.specs if store in env.flushers]
        self._flushers += [buffer.flush for buffer in self._buffers]
        self._stream_punctuations = self._program.punctuations[Punctuation.STREAM_TIME]
        self._inlets = self._by_topic()
        self._tallies = any(inlet.tally for inlet in self._inlets.values())
        self._orders = [
            (some, self.state.cell(f"task/{kind.value}", b"")) for kind, some in self._program.punctuations.items()
        ]
        for punctuations, order in self._orders:
            punctuations.arrange(order.value)
        sources = [node for name in nodes if isinstance(node := graph.nodes[name], n.Source)]
        self._patterns = [node for node in sources if node.pattern]
        read = {topic for node in sources for topic in node.topics}
        self._reads_only_the_log = not for_globals and read.isdisjoint(graph.internal_topics)
        # How many rows of each internal topic the task has received, where a function may ask for their offsets. The
        # cells are numbered: a generated topic name changes when an operator is added before it.
        is_asked = any(reads_metadata(graph.nodes[name]) for name in nodes)
        counted = [topic for topic in graph.internal_topics if topic in read] if is_asked else ()
        cells = (self.state.cell(f"task/rows {number}", 0) for number in range(len(counted)))
        self._received = dict(zip(map(self.topic_name, counted), cells, strict=True))

    def _open(self, engine: Engine, serdes: Serdes, config: Config, tracer: Tracer | None) -> TaskState:
        names = dict.fromkeys(store for node in self._nodes for store in self._graph.node_stores[node])
        specs = {name: resolved(self._graph.stores[name], serdes) for name in names}
        if tracer is not None:
            internal = self._internal_topics
            self.tracer = tracer.of_task(self.task_id, self._graph, self.here, self._outbox, specs, internal)
        return TaskState.open(
            specs,
            engine,
            key=serdes.default_key,
            value=serdes.default_value,
            persistent=config.dsl_store_suppliers_class == "persistent",
            caching=config.statestore_cache_max_bytes > 0,
            dropped=self._drop_from_store,
            observe=None if self.tracer is None else self.tracer.observe,
        )

    def _env(self, config: Config, around: TaskEnvironment) -> Env:
        own = self.state.stores

        def store(name: str) -> Any:
            return own[name] if name in own else around.globals[name]

        return Env(
            state=self.state,
            store=store,
            here=self.here,
            drop_in=self._drop,
            drop=partial(self._drop, STORE),
            lookup=self._lookup,
            caching=config.statestore_cache_max_bytes > 0,
            headers_format=config.dsl_store_format == "HEADERS",
            emit_interval=config.emit_interval_ms,
        )

    def _lookup(self, name: str) -> Lookup:
        return self._lookups(name)

    def _drop(self, node: str, reason: str, count: int = 1, *, is_dead_letter: bool = False) -> None:
        """Counts dropped records, keeps the first of each reason, and writes all to the topic of dropped records."""
        self._dropped[reason] += count
        if self.tracer is not None:
            self.tracer.drop(node, reason)
        row, here = self.here.row, self.here
        if self._dropped[reason] <= KEPT_DROPS and row is not None:
            topic, partition, offset, key, _, timestamp, _, _ = row
            raw = None if key is None else bytes(key[:KEY_BYTES])
            place = (topic, partition, -1 if topic in self._internal_topics else offset, raw, timestamp)
            self._drops.append(DroppedRecord(reason, node, *place, here.stream_time, here.clock))
        if self._drops_topic is not None and row is not None and not is_dead_letter:
            self._write_drop(self._drops_topic, row, node, reason)

    def _write_drop(self, topic: str, row: Row, node: str, reason: str) -> None:
        """Writes a dropped record with the headers of a dead letter, once for each operator and reason."""
        last, *why = self._last_drop
        if last is row and why == [node, reason]:  # a record may be late for several windows
            return
        self._last_drop = row, node, reason
        origin, partition, offset, key, value, timestamp, headers, order = row
        message = f"{node} left it out: {reason}"
        cause = error_headers(reason, message, "", origin, partition, offset)
        self._outbox.append((topic, None, key, value, timestamp, (*headers, *cause), order))

    def _drop_from_store(self, reason: str, count: int) -> None:
        self._drop(STORE, reason, count)

    def topic_name(self, topic: str) -> str:
        """The name of a topic in the log: internal topics have the application's id as a prefix."""
        return f"{self._application}-{topic}" if topic in self._graph.internal_topics else topic

    def _by_topic(self) -> dict[str, Inlet]:
        return {
            self.topic_name(topic): inlet
            for name, inlet in self._program.inlets.items()
            for topic in source_topics(self._graph.nodes[name])
        }

    def reads(self, topic: str) -> bool:
        """Whether one of the task's sources reads the topic."""
        if topic not in self._inlets:
            for source in self._patterns:
                if source.pattern and re.fullmatch(source.pattern, topic):
                    self._inlets[topic] = self._program.inlets[source.name]
        return topic in self._inlets

    def operator_of(self, topic: str) -> Emit:
        """The operator that takes the decoded records of a topic."""
        return self._find_inlet(topic).emit

    def _find_inlet(self, topic: str) -> Inlet:
        if not self.reads(topic):
            raise StreamsError(f"task {self.task_id} has no source for the topic {topic!r}")
        return self._inlets[topic]

    # ------------------------------------------------------------------------------------------------- a batch
    def run(self, inputs: Inputs, *, clock: int, version: Version) -> Result:
        """Processes the inputs, runs what is due by the clock, and commits the state as `version`.

        Carried rows go first. Partitions of the log are merged by time, or by order if rows of other tasks may come
        too, which have no time of their own.
        """
        log, self.here.clock, self.here.order = inputs.log, clock, ()
        positions = {at: given.end for at, given in log.items()}
        if self.tracer is not None:
            self.tracer.begin()
        try:
            if inputs.carried:
                self._process(self._number(merge_by_order(map(self._decode, inputs.carried))))
            if inputs.received or (len(log) > 1 and not self._reads_only_the_log):
                batches = chain(inputs.received, *(given.batches for given in log.values()))
                self._process(self._number(merge_by_order(map(self._decode, batches))))
            elif len(log) == 1:
                (only,) = log.values()
                self._run_partition(only.batches)
            elif log:
                rows = MergedByTime(log, self._decode_all)
                self._process(rows)
                positions = rows.positions
            self._process(inputs.decoded)
            if self.tracer is not None:
                self.here.order = tuple(self.here.order)  # the last record does not cause what the clock triggers
            self._run_by_clock(clock)
            return self._end(version, positions)
        except BaseException:
            self.state.rollback()
            self._outbox.clear()
            self._counts.clear()
            self._dropped.clear()
            self._drops.clear()
            for buffer in self._buffers:
                buffer.clear()
            self.here.commit_requested = False
            raise

    def _run_partition(self, batches: Iterable[PartitionBatch]) -> None:
        """Processes one partition of the log: in bulk if it only feeds a count, or a sink over stateless nodes."""
        for batch in join_batches(batches) if self._tallies else batches:
            inlet = self._find_inlet(batch.at.topic)
            in_bulk = inlet.tally or inlet.relay
            if in_bulk is None or self._stream_punctuations.due != NEVER or not in_bulk(batch):
                self._process(self._decode(batch))

    def _decode_all(self, batches: Iterable[PartitionBatch]) -> Iterator[Decoded]:
        return chain.from_iterable(map(self._decode, batches))

    def _decode(self, batch: PartitionBatch) -> Iterator[Decoded]:
        """Decodes rows, in bulk unless a record must be read alone. Leaves dropped records out."""
        inlet, counts, times = self._find_inlet(batch.at.topic), batch.counts, batch.records.timestamps
        emit = inlet.emit if counts is None else inlet.add
        if emit is None:
            raise StreamsError(f"task {self.task_id} got counts for {inlet.name}, which does not lead to a count")
        columns = inlet.read_all(batch)
        if columns is not None:
            return zip(batch.rows(), *columns, times, repeat(emit))
        if counts is None:
            return filter(None, map(self.read, batch.rows()))
        found = zip(map(self.read, batch.rows()), counts, strict=True)
        return ((read[0], read[1], count, read[3], emit) for read, count in found if read is not None)

    def _number(self, rows: Iterable[Decoded]) -> Iterable[Decoded]:
        """Numbers the rows of internal topics as a log would: without that, their offsets begin anew in every batch."""
        return map(self._with_offset, rows) if self._received else rows

    def _with_offset(self, decoded: Decoded) -> Decoded:
        row, key, value, timestamp, emit = decoded
        received = self._received.get(row[0])
        if received is None:
            return decoded
        # A row with a count stands for that many records, the last of which it has the offset of.
        received.value += value if emit is self._find_inlet(row[0]).add else 1
        return (*row[:2], received.value - 1, *row[3:]), key, value, timestamp, emit

    def read(self, row: Row) -> Decoded | None:
        """Decodes a row and finds its timestamp; None if the record is dropped."""
        self.here.row, self.here.order = row, row[7]
        inlet = self._find_inlet(row[0])
        found = inlet.read(row)
        return None if found is None else (row, *found, inlet.emit)

    def _process(self, rows: Iterable[Decoded]) -> None:
        """Processes decoded rows; after each row it runs what is due by stream time."""
        if self._buffers:
            self._process_in_batches(rows)
            return
        here, punctuations = self.here, self._stream_punctuations
        for row, key, value, timestamp, emit in rows:
            here.row, here.order = row, row[7]
            if timestamp > here.stream_time:
                here.stream_time = timestamp
            emit(key, value, timestamp, row[6])
            if here.stream_time >= punctuations.due:
                punctuations.run(here.stream_time)

    def _process_in_batches(self, rows: Iterable[Decoded]) -> None:
        """Does what `_process` does, if the task has batch buffers: only records of one source wait together."""
        here, punctuations, last = self.here, self._stream_punctuations, None
        for row, key, value, timestamp, emit in rows:
            if emit is not last:
                self._flush_buffers()
                last = emit
            here.row, here.order = row, row[7]
            if timestamp > here.stream_time:
                here.stream_time = timestamp
            emit(key, value, timestamp, row[6])
            if here.stream_time >= punctuations.due:
                self._flush_buffers()
                punctuations.run(here.stream_time)
        self._flush_buffers()

    def _flush_buffers(self) -> None:
        while True in [buffer.flush() for buffer in self._buffers]:
            pass  # flushing one may fill another

    def _run_by_clock(self, clock: int) -> None:
        """Runs what is due and no record has triggered. The host may have moved stream time, to that of other tasks."""
        if self.here.stream_time >= self._stream_punctuations.due:
            self._stream_punctuations.run(self.here.stream_time)
        for due, emit in self._postponed:
            time = due()
            if time is not None and time <= clock:
                emit(clock)
        self._program.punctuations[Punctuation.WALL_CLOCK].run(clock)

    def _end(self, version: Version, positions: dict[TopicPartition, int]) -> Result:
        """Flushes the caches and commits the state."""
        while True in [flush() for flush in self._flushers]:
            pass  # flushing one cache may fill another
        for let_out in self._program.combined:
            let_out()
        self._stream_time.value = self.here.stream_time
        for punctuations, order in self._orders:
            order.value = punctuations.order
        delta = self.state.commit(version)
        requested, self.here.commit_requested = self.here.commit_requested, False
        outputs, counts, drops = self._outbox.copy(), self._counts.copy(), tuple(self._drops)
        result = Result(outputs, counts, delta, dict(self._dropped), positions, requested, drops)
        self._outbox.clear()
        self._counts.clear()
        self._dropped.clear()
        self._drops.clear()
        return result

    @property
    def next_tick(self) -> int | None:
        """The wall-clock time at which the task has something to do, None if it has nothing."""
        due = self._program.punctuations[Punctuation.WALL_CLOCK].due
        times = [time for is_due, _ in self._postponed if (time := is_due()) is not None]
        first = min([due, *times])
        return None if first == NEVER else first

    def close(self) -> None:
        """Closes all processors and the state, each once, then raises the first error."""
        failed = self.close_processors()
        self.state.close()
        if failed:
            raise failed[0]

    def close_processors(self) -> list[StreamsError]:
        """Closes all processors, each once, and returns their errors. The state stays open, for another `Task`."""
        failed: list[StreamsError] = []
        while self._program.users:
            user = self._program.users.pop(0)
            try:
                close(user)
            except StreamsError as error:
                failed.append(error)
        return failed


def reads_metadata(node: n.Node) -> bool:
    """Whether a function of the user gets a context, which has the offset of the record."""
    return isinstance(node, n.Process | n.TableTransformValues) or (isinstance(node, n.Sink) and callable(node.topic))


def source_topics(node: n.Node) -> tuple[str, ...]:
    return node.topics if isinstance(node, n.Source) else ()


def close(user: Any) -> None:
    """Closes a processor or transformer, if it has a `close`."""
    try:
        getattr(user, "close", lambda: None)()
    except Exception as error:
        what = f"close of {type(user).__name__} failed: {type(error).__name__}"
        raise StreamsError(f"{what}: {error}", summary=what) from error
