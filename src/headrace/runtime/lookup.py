"""Looks a key of a table up: in the table's store, or by computing the value from the parent tables.

The functions at the end tell whether the changes of a table reach an aggregate, through the tables between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from headrace.errors import TopologyError
from headrace.runtime.environment import Env, Lookup
from headrace.runtime.operators.table import filtered, mapped
from headrace.runtime.operators.table_join import UNKNOWN, joined_lookup
from headrace.runtime.tables import keyed_lookup, lookup_in
from headrace.state.buffer import SuppressBuffer
from headrace.topology import nodes as n
from headrace.topology.graph import Graph

Found = tuple[Any, int] | None


class Lookups:
    """Makes the lookup of each table node once."""

    def __init__(
        self,
        graph: Graph,
        env: Callable[[], Env],
        buffer_of: Callable[[n.Suppress], SuppressBuffer],
        transformer_of: Callable[[n.TableTransformValues], Callable[[Any, Any], Any]],
    ) -> None:
        self._graph, self._env, self._buffer_of, self._transformer_of = graph, env, buffer_of, transformer_of
        self._made: dict[str, Lookup] = {}

    def __call__(self, name: str) -> Lookup:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Lookup:
        node, env = self._graph.nodes[name], self._env()
        match node:
            case n.TablePassThrough():
                return keyed_lookup(env.store(node.store))
            case n.Suppress():
                return self._suppressed(node)
            case n.TableTransformValues(store=None):
                return self._transformed(node)
            case n.TableFilter(store=None):
                return self._computed(name, filtered(node))
            case n.TableMapValues(store=None):
                return self._computed(name, mapped(node))
            case n.TableJoinMerge(store=None):
                left = self._graph.nodes[self._graph.parents[name][0]]
                return joined_lookup(cast("n.TableJoin", left), env)
            case _:
                store = getattr(node, "store", None)
                if store is None:
                    raise TopologyError(f"{name} is not a table that can be looked up")
                return lookup_in(env.store(store))

    def _parent(self, name: str) -> Lookup:
        return self(self._graph.parents[name][0])

    def _computed(self, name: str, value_of: Callable[[Any, Any], Any]) -> Lookup:
        parent = self._parent(name)

        def compute(key: Any, found: Found) -> Found:
            value = None if found is None else value_of(key, found[0])
            return None if value is None or found is None else (value, found[1])

        return derived(parent, compute)

    def _transformed(self, node: n.TableTransformValues) -> Lookup:
        """Computes the value with a transformer of its own, which is called for absent values too."""
        parent, transform, here = self._parent(node.name), self._transformer_of(node), self._env().here

        def compute(key: Any, found: Found) -> Found:
            row, here.row = here.row, None
            value = transform(key, found and found[0])
            here.row = row
            return None if value is None else (value, found[1] if found else UNKNOWN)

        return derived(parent, compute)

    def _suppressed(self, node: n.Suppress) -> Lookup:
        """The value that `suppress` emitted last, which is older than the updates that it holds back."""
        parent, buffer = self._parent(node.name), self._buffer_of(node)

        def get(key: Any) -> Found:
            held, value = buffer.prior(key)
            if not held:
                return parent.get(key)
            return None if value is None else (value, UNKNOWN)

        return Lookup(get)


def derived(parent: Lookup, compute: Callable[[Any, Found], Found]) -> Lookup:
    """A lookup that computes values from those of the parent, past versions too if the parent has them."""

    def get(key: Any) -> Found:
        return compute(key, parent.get(key))

    as_of = parent.as_of
    if as_of is None:
        return Lookup(get)

    def get_as_of(key: Any, time: int) -> Found:
        return compute(key, as_of(key, time))

    return Lookup(get, get_as_of)


# Table nodes that forward the changes of their parent, or changes computed from them.
DERIVED = (
    n.Suppress,
    n.TableFilter,
    n.TableJoin,
    n.TableJoinMerge,
    n.TableMapValues,
    n.TablePassThrough,
    n.TableTransformValues,
)


def feeds_aggregate(graph: Graph, name: str) -> bool:
    """Whether the changes of a table reach a table's `group_by`, directly or through other tables."""
    below = [graph.nodes[child] for child in graph.children[name]]
    return any(
        isinstance(node, n.TableRekey) or (isinstance(node, DERIVED) and feeds_aggregate(graph, node.name))
        for node in below
    )


def feeds_suppressed_aggregate(graph: Graph, name: str) -> bool:
    """Whether the changes of a table reach a table's `group_by` through a `suppress`.

    That `suppress` takes the old value of the first held-back update for the value that it emitted last.
    """
    below = [graph.nodes[child] for child in graph.children[name]]
    return any(
        (feeds_aggregate if isinstance(node, n.Suppress) else feeds_suppressed_aggregate)(graph, node.name)
        for node in below
        if isinstance(node, DERIVED)
    )
