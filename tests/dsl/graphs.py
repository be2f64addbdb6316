"""What the tests of the DSL ask of a topology."""

from typing import Any

from headrace.dsl.builder import StreamsBuilder
from headrace.topology.graph import Graph


def graph_of(builder: StreamsBuilder, optimize: Any = None) -> Graph:
    return builder.build(optimize).graph()


def node(builder: StreamsBuilder, kind: type, optimize: Any = None) -> Any:
    """The only node of a kind."""
    (found,) = nodes(builder, kind, optimize)
    return found


def nodes(builder: StreamsBuilder, kind: type, optimize: Any = None) -> list[Any]:
    return [found for found in graph_of(builder, optimize).nodes.values() if isinstance(found, kind)]


def by_name(builder: StreamsBuilder, name: str) -> Any:
    return graph_of(builder).nodes[name]


def names(builder: StreamsBuilder, optimize: Any = None) -> list[str]:
    return list(graph_of(builder, optimize).nodes)
