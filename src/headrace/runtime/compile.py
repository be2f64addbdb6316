"""From nodes to closures: one function per node, each calling the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from headrace.config import Config
from headrace.model.ids import TaskId
from headrace.model.timestamps import RECORD, extractor_of
from headrace.runtime.buffers import Buffers
from headrace.runtime.context import Context, TransformerContext
from headrace.runtime.environment import Emit, EmitColumns, Env, fan_out, nowhere
from headrace.runtime.failures import Failures
from headrace.runtime.lookup import feeds_aggregate, feeds_suppressed_aggregate
from headrace.runtime.operators import (
    aggregate,
    batches,
    foreign_key_join,
    process,
    relay,
    session_aggregate,
    sliding_aggregate,
    source_sink,
    stateless,
    stream_join,
    suppress,
    table,
    table_join,
    window_aggregate,
)
from headrace.runtime.operators.aggregate import counted_topics, counter_of
from headrace.runtime.punctuation import Punctuations
from headrace.runtime.serdes import Serdes
from headrace.runtime.tables import keyed, lookup_in
from headrace.runtime.tracing import TaskTracer
from headrace.serde.protocol import Serde, depends_on_topic
from headrace.serde.windowed import inside_windows
from headrace.topology import nodes as n
from headrace.topology.graph import Graph
from headrace.topology.nodes import ResponseOf
from headrace.topology.processor import Punctuation

# These nodes only forward what they get, so they need no guard against errors of user code.
HARMLESS = (n.PassThrough, n.TablePassThrough, n.TableToStream, n.Sink)


@dataclass(slots=True)
class Program:
    """A compiled sub-topology: its inlets, its punctuations, and the processors to close."""

    inlets: dict[str, source_sink.Inlet] = field(default_factory=dict[str, source_sink.Inlet])  # by source node
    combined: list[Callable[[], None]] = field(
        default_factory=list[Callable[[], None]]
    )  # send the counts that sinks have combined, after all other outputs
    punctuations: Mapping[Punctuation, Punctuations] = field(
        default_factory=lambda: {kind: Punctuations() for kind in Punctuation}
    )
    buffers: list[batches.BatchBuffer] = field(
        default_factory=list[batches.BatchBuffer]
    )  # of nodes that take many values at once, in the order from the sources down
    users: list[Any] = field(default_factory=list[Any])  # processors and transformers, to be closed at the end


class Compiler:
    """Compiles the nodes of one task."""

    def __init__(
        self,
        graph: Graph,
        task_id: TaskId,
        env: Env,
        serdes: Serdes,
        failures: Failures,
        outlet: source_sink.Outlet,
        config: Config,
        *,
        combines: bool,
        side_effects: bool = True,
        tracer: TaskTracer | None = None,
    ) -> None:
        self.graph, self.task_id, self.env, self.serdes = graph, task_id, env, serdes
        self.failures, self.outlet, self.config = failures, outlet, config
        self._side_effects, self._tracer = side_effects, tracer
        self._counted = counted_topics(graph, config) if combines else set[str]()
        self.program, self.buffers = Program(), Buffers(graph, env, serdes)
        self._emits: dict[str, Emit] = {}
        self._starts: dict[str, Callable[[], None]] = {}

    def compile(self, names: Collection[str]) -> Program:
        """Closures are made from the leaves up, processors are started from the sources down, as in Kafka Streams."""
        for name in names:
            node = self.graph.nodes[name]
            if isinstance(node, n.Source):
                self.program.inlets[name] = self._inlet(node)
            else:
                self._emit(name)
        for name in names:
            if name in self._starts:
                self._starts[name]()
        return self.program

    def _emit(self, name: str) -> Emit:
        if name not in self._emits:
            node = self.graph.nodes[name]
            run = self._operator(node, {child: self._emit_from(name, child) for child in self.graph.children[name]})
            harmless = isinstance(node, HARMLESS) and not (isinstance(node, n.Sink) and has_functions(node))
            emit = run if harmless else self.failures.guard(name, run)
            self._emits[name] = emit if self._tracer is None else self._tracer.wrap(node, emit)
        return self._emits[name]

    def _emit_from(self, parent: str, child: str) -> Emit:
        emit = self._emit(child)
        return emit if self._tracer is None else self._tracer.give_from(parent, emit)

    def _operator(self, node: n.Node, children: Mapping[str, Emit]) -> Emit:  # noqa: C901, PLR0911, PLR0912 - one case a kind of node
        """The closure that runs a node: one case for each kind of node."""
        env, buffers, emit = self._env_of(node.name), self.buffers, fan_out(list(children.values()))
        match node:
            # Edges
            case n.Source():
                raise AssertionError(f"{node.name} is a source: _inlet compiles it")
            case n.Sink():
                return self._sink(node)
            # Streams
            case n.PassThrough() | n.TablePassThrough():
                return emit
            case n.Filter():
                return stateless.filter_(node, emit)
            case n.Map():
                return stateless.map_(node, emit)
            case n.MapValues():
                return stateless.map_values(node, emit)
            case n.MapValuesBatch():
                return self._hold(batches.map_values_batch(node, env, self.failures, emit))
            case n.MapValuesAsync():
                return self._hold(batches.map_values_async(node, env, self.failures, emit))
            case n.FlatMap():
                return stateless.flat_map(node, emit)
            case n.FlatMapValues():
                return stateless.flat_map_values(node, emit)
            case n.SelectKey():
                return stateless.select_key(node, emit)
            case n.Peek():
                return stateless.peek(node, emit) if self._side_effects else emit
            case n.Foreach():
                return stateless.foreach(node) if self._side_effects else nowhere
            case n.Branch():
                return stateless.branch(node, children)
            case n.Process():
                return self._process(node, children)
            # Aggregates of streams
            case n.StreamAggregate():
                return aggregate.aggregate(node, env, emit, true_old=self._needs_true_old(node))
            case n.StreamReduce():
                return aggregate.reduce(node, env, emit)
            case n.WindowAggregate():
                return window_aggregate.window_aggregate(node, env, emit, true_old=self._needs_true_old(node))
            case n.SlidingAggregate():
                return sliding_aggregate.sliding_aggregate(node, env, emit, true_old=self._needs_true_old(node))
            case n.SessionAggregate():
                return session_aggregate.session_aggregate(node, env, emit)
            # Joins of streams
            case n.JoinWindow():
                return stream_join.join_window(node, env, emit)
            case n.StreamJoin():
                return stream_join.stream_join(node, env, buffers.unmatched(node), emit)
            case n.SelfJoin():
                return stream_join.self_join(node, env, emit)
            case n.StreamTableJoin():
                return table_join.stream_table_join(node, env, buffers.grace(node), emit)
            case n.GlobalJoin():
                return table_join.global_join(node, lookup_in(env.store(node.store)), env, emit)
            # Tables
            case n.TableSource():
                return table.source(node, env, emit)
            case n.TableFilter():
                return table.derived(node, table.filtered(node), env, emit)
            case n.TableMapValues():
                return table.derived(node, table.mapped(node), env, emit)
            case n.TableTransformValues():
                return table.derived(node, self.transformer(node), env, emit)
            case n.TableToStream():
                return table.to_stream(emit)
            case n.TableRekey():
                return table.rekey(node, emit)
            case n.TableAggregate():
                return table.aggregate(node, env, emit)
            case n.TableReduce():
                return table.reduce(node, env, emit)
            case n.Suppress():
                old_is_prior = feeds_aggregate(self.graph, node.name)
                return suppress.suppress(node, buffers.suppress(node), env, emit, old_is_prior=old_is_prior)
            # Joins of tables
            case n.TableJoin():
                return table_join.table_join(node, env, emit)
            case n.TableJoinMerge():
                return table_join.merge(node, env, emit)
            case n.Subscribe():
                serdes, partition = self.serdes.of_join(node.foreign_key, node.value), self.task_id.partition
                return foreign_key_join.subscribe(node, *serdes, partition, env, emit)
            case n.SubscriptionReceive():
                return foreign_key_join.receive(buffers.subscriptions(node.store), env, emit)
            case n.SubscriptionJoin():
                return foreign_key_join.answer(node, env, emit)
            case n.ForeignUpdate():
                return foreign_key_join.foreign_update(node, buffers.subscriptions(node.store), env, emit)
            case n.ResponseJoin():
                return foreign_key_join.respond(node, self.serdes.of_join(None, node.value)[1], env, emit)
            case _:
                assert_never(node)

    def _env_of(self, name: str) -> Env:
        return self.env.of_node(name, self._to_sink(name))

    def _to_sink(self, name: str) -> EmitColumns | None:
        """The function that takes many updates of a table to its sink at once; None if the path does not allow it."""
        sink = relay.find_sink(self.graph, name)
        if sink is None or sink.topic in self._counted or self._tracer is not None or self.failures.watch is not None:
            return None
        internal = sink.topic in self.graph.internal_topics
        serdes = self._serdes(sink, internal)
        if not relay.can_end_at(sink, serdes) or any(map(depends_on_topic, serdes)):
            return None
        inner = None if internal else inside_windows(serdes[0])
        return source_sink.column_sink(sink, serdes, inner, self.outlet, self.failures)

    def _hold(self, buffer: batches.BatchBuffer) -> Emit:
        self.program.buffers.insert(0, buffer)  # nodes are compiled from the leaves up
        return buffer.take

    def _needs_true_old(self, node: n.Node) -> bool:
        return feeds_suppressed_aggregate(self.graph, node.name)

    # ------------------------------------------------------------------------------------------------ user code
    def _context(self, kind: type[Context], name: str, children: Mapping[str, Emit]) -> Context:
        own, guard = self.graph.node_stores[name], self._guard_punctuation
        read_only = {store: self.graph.stores[store] for store in self.graph.global_stores if store not in own}
        return kind(name, self.task_id, self.env, children, own, read_only, self.program.punctuations, guard)

    def _process(self, node: n.Process, children: Mapping[str, Emit]) -> Emit:
        user = process.make(node.name, node.supplier)
        self._starts[node.name] = lambda: self._start(user, self._context(Context, node.name, children))
        return process.process(node, user)

    def transformer(self, node: n.TableTransformValues) -> Callable[[Any, Any], Any]:
        user = process.make(node.name, node.supplier)
        self._start(user, self._context(TransformerContext, node.name, {}))
        return user.transform

    def _start(self, user: Any, context: Context) -> None:
        self.program.users.append(user)  # processors are closed in this order
        process.start(user, context)

    def _guard_punctuation(self, node: str, run: Callable[[int], None]) -> Callable[[int], None]:
        guarded = self.failures.guard_punctuation(node, run)
        return guarded if self._tracer is None else self._tracer.wrap_punctuation(node, guarded)

    # ---------------------------------------------------------------------------------------------------- edges
    def _inlet(self, node: n.Source) -> source_sink.Inlet:
        emit = self._below(node.name)
        if self._tracer is not None:
            emit = self._tracer.wrap(node, emit)
        internal = any(topic in self.graph.internal_topics for topic in node.topics)
        extract = RECORD if internal else node.timestamp or extractor_of(self.config.default_timestamp_extractor)
        key, value = self._serdes(node, internal)
        env = self.env.of_node(node.name)
        inlet = source_sink.inlet(node, key, value, extract, env, self.failures, emit, internal=internal)
        if extract is not RECORD or self._tracer is not None:
            return inlet
        counter = counter_of(self.graph, node, self.config)
        if counter is None:
            return inlet._replace(relay=self._relay(node, (key, value), env, internal=internal))
        env = self._env_of(counter.name)
        add = aggregate.add_counts(counter, env, self._below(counter.name))
        tally = aggregate.tally(key, value, keyed(env.store(counter.store)).place, env, add)
        return inlet._replace(tally=tally, add=self.failures.guard(counter.name, add))

    def _relay(self, node: n.Source, serdes: tuple[Serde, Serde], env: Env, *, internal: bool) -> relay.Relay | None:
        """The function that takes many records of a source at once; None if the path does not allow it."""
        path = relay.find_path(self.graph, node)
        if path is None or self.failures.watch is not None:
            return None
        stages, sink = path
        to_internal = sink.topic in self.graph.internal_topics
        own = self._serdes(sink, to_internal)
        is_windowed = not to_internal and inside_windows(own[0]) is not None
        if not relay.can_end_at(sink, own) or is_windowed or sink.topic in self._counted:
            return None
        return relay.compile_relay(
            node, sink, stages, (serdes, own), self.outlet, env, self.failures, internal=internal
        )  # fmt: skip

    def _below(self, name: str) -> Emit:
        return fan_out([self._emit_from(name, child) for child in self.graph.children[name]])

    def _serdes(self, node: n.Source | n.Sink, internal: bool) -> tuple[Serde, Serde]:
        """The serdes of the topic; if a function chooses the topic for each record, they are not bound to it yet."""
        topic = (node.topics[0] if node.topics else None) if isinstance(node, n.Source) else node.topic
        name = self.outlet.topic_name(topic) if isinstance(topic, str) else None
        value = self.serdes.inner_value if internal else self.serdes.value
        return self.serdes.key(node.key, name), value(node.value, name)

    def _sink(self, node: n.Sink) -> Emit:
        internal = node.topic in self.graph.internal_topics
        serdes = self._serdes(node, internal)
        inner = None if internal else inside_windows(serdes[0])
        if isinstance(node.value, ResponseOf):
            node = replace(node, partitioner=foreign_key_join.back_to_asker)
        encode = None
        if not internal and any(map(depends_on_topic, serdes)):
            if isinstance(node.topic, str) and not any(map(source_sink.writes_headers, serdes)):
                encode = source_sink.plain_encoder(serdes)
            else:
                encode = source_sink.topic_encoder(
                    lambda topic: (self.serdes.key(node.key, topic), self.serdes.value(node.value, topic))
                )
        sink = source_sink.sink(node, serdes, inner, self.outlet, self.env, self.failures, encode)
        if node.topic in self._counted:
            send, flush = aggregate.combine(node, serdes, self.outlet, self.env, self.failures, sink)
            self.program.combined.append(flush)
            return send
        return sink


def has_functions(node: n.Sink) -> bool:
    """Whether functions of the user choose the topic or the partition."""
    return callable(node.topic) or node.partitioner is not None
