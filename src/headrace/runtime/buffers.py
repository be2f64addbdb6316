"""The internal stores of joins, suppression and foreign-key joins: records that wait, and subscriptions."""

from __future__ import annotations

from typing import Any

from headrace.runtime.environment import Env
from headrace.runtime.operators.stream_join import Unmatched
from headrace.runtime.serdes import Serdes
from headrace.serde.protocol import Serde
from headrace.state.buffer import GraceBuffer, SuppressBuffer, UnmatchedBuffer
from headrace.state.key_value import Subscriptions
from headrace.state.table import Table
from headrace.topology import nodes as n
from headrace.topology.graph import Graph
from headrace.topology.nodes import SubscriptionOf


class Buffers:
    """Opens the internal stores of nodes; nodes that share a store get the same object."""

    def __init__(self, graph: Graph, env: Env, serdes: Serdes) -> None:
        self._graph, self._env, self._serdes = graph, env, serdes
        self._shared: dict[str, Any] = {}

    def unmatched(self, node: n.StreamJoin) -> Unmatched:
        if node.join not in self._shared:
            buffer = None if node.outer_store is None else self._unmatched_buffer(node, node.outer_store)
            self._shared[node.join] = Unmatched(node, self._env, buffer)
        return self._shared[node.join]

    def _unmatched_buffer(self, node: n.StreamJoin, store: str) -> UnmatchedBuffer:
        twin = next(
            twin for twin in self._graph.nodes.values()
            if isinstance(twin, n.StreamJoin) and twin.join == node.join and twin.left_side != node.left_side
        )  # fmt: skip
        left, right = (node, twin) if node.left_side else (twin, node)
        key, left_value = self._serdes_of(right.other_store)
        _, right_value = self._serdes_of(left.other_store)
        buffer = UnmatchedBuffer(self._table(store), key, left_value, right_value)
        self._env.state.attach(store, buffer.write_new, buffer.rolled_back)
        return buffer

    def grace(self, node: n.StreamTableJoin) -> GraceBuffer | None:
        if node.buffer is None:
            return None
        sequence = self._env.state.cell(f"{node.buffer}/sequence", 0)
        return GraceBuffer(self._table(node.buffer), sequence, *self._serdes_of(node.buffer))

    def suppress(self, node: n.Suppress) -> SuppressBuffer:
        if node.buffer not in self._shared:
            count, size = (self._env.state.cell(f"{node.buffer}/{what}", 0) for what in ("count", "size"))
            self._shared[node.buffer] = SuppressBuffer(
                self._table(node.buffer), count, size, *self._serdes_of(node.buffer)
            )
        return self._shared[node.buffer]

    def subscriptions(self, store: str) -> Subscriptions:
        if store not in self._shared:
            spec = self._graph.stores[store]
            primary_key = spec.value.primary_key if isinstance(spec.value, SubscriptionOf) else spec.value
            serdes = self._serdes.key(spec.key), self._serdes.key(primary_key)
            self._shared[store] = Subscriptions(self._table(store), *serdes)
        return self._shared[store]

    def _serdes_of(self, store: str) -> tuple[Serde, Serde]:
        return self._serdes.of_store(self._graph.stores[store])

    def _table(self, store: str) -> Table:
        return self._env.state.table(store, as_it_is, as_it_is, share=True)


def as_it_is(raw: bytes) -> bytes:
    return raw
