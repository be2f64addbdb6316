"""What is to run: sub-topologies on levels, and what flows between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """One sub-topology: it runs as one task per partition."""

    number: int
    nodes: tuple[str, ...]
    topics: tuple[str, ...]  # of the log that it reads
    patterns: tuple[str, ...]  # of topics of the log that it reads
    inputs: tuple[str, ...]  # internal topics that it reads
    outputs: tuple[str, ...]  # internal topics that it writes
    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """An internal topic from one stage to another; rows on a back edge arrive in the next batch."""

    topic: str
    origin: int
    target: int
    back: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages by number; `levels` holds their numbers, and an edge that is not a back edge leads to a later level."""

    stages: Mapping[int, Stage]
    edges: tuple[Edge, ...]
    levels: tuple[tuple[int, ...], ...]
    global_nodes: tuple[str, ...]  # what fills the global stores; every host runs it

    def level_of(self, number: int) -> int:
        return next(index for index, level in enumerate(self.levels) if number in level)

    @property
    def back_edges(self) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.back)
