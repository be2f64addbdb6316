"""What tables feed, through whatever tables lie between."""

from __future__ import annotations

from headrace.topology import nodes as n
from headrace.topology.graph import Graph

# Tables whose changes are those of the table above, or made of them.
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
    """Whether the changes of a table reach the `group_by` of a table, through whatever tables lie between."""
    below = [graph.nodes[child] for child in graph.children[name]]
    return any(
        isinstance(node, n.TableRekey) or (isinstance(node, DERIVED) and feeds_aggregate(graph, node.name))
        for node in below
    )


def feeds_suppressed_aggregate(graph: Graph, name: str) -> bool:
    """Whether they do so through a `suppress`, which takes the first old value of a row for the one that it let out."""
    below = [graph.nodes[child] for child in graph.children[name]]
    return any(
        (feeds_aggregate if isinstance(node, n.Suppress) else feeds_suppressed_aggregate)(graph, node.name)
        for node in below
        if isinstance(node, DERIVED)
    )
