"""Where things stand in a picture of a topology.

Two layered layouts, one inside the other. Inside a sub-topology, nodes stand in rows, each below all that feed it, with
their stores beside them. Outside, sub-topologies and topics do the same. What leads back up has no say in the order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace.topology.graph import Graph
from headrace.topology.nodes import Sink, Source

Kind = Literal["node", "store", "topic", "group"]
Links = Mapping[str, Sequence[str]]
GAP_X, GAP_Y, PAD, TITLE, HEIGHT = 28.0, 34.0, 18.0, 24.0, 34.0
_CHARACTER, _LONGEST = 7.3, 44  # the width of one, and how many are shown of a name


class Box(NamedTuple):
    """A thing and its place; `label` may be short for `name`."""

    kind: Kind
    name: str
    label: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """All boxes by key, the edges between them as keys, and how large it is."""

    boxes: dict[str, Box] = field(default_factory=dict[str, Box])
    edges: list[tuple[str, str, bool]] = field(default_factory=list[tuple[str, str, bool]])  # is it to a store?
    width: float = 0.0
    height: float = 0.0


class Size(NamedTuple):
    width: float
    height: float


def lay_out(graph: Graph) -> Layout:
    """The places of all sub-topologies, nodes, stores and topics."""
    boxes: dict[str, Box] = {}
    insides = {f"group {n}": _inside(graph, group) for n, group in enumerate(graph.groups)}
    reads, writes = _topics(graph)
    outer: dict[str, list[str]] = {key: [] for key in insides}
    for topic in [*reads, *writes]:
        outer.setdefault(f"topic {topic}", [])
    for topic, nodes in reads.items():
        outer[f"topic {topic}"] += dict.fromkeys(f"group {_group_of(graph, node)}" for node in nodes)
    for topic, nodes in writes.items():
        for key in dict.fromkeys(f"group {_group_of(graph, node)}" for node in nodes):
            outer[key].append(f"topic {topic}")
    sizes = {key: insides[key][1] if key in insides else _size(key.partition(" ")[2]) for key in outer}
    places, whole = arrange(outer, sizes)
    for key, (x, y) in places.items():
        kind, _, name = key.partition(" ")
        if kind == "topic":
            boxes[key] = Box("topic", name, short(name), x, y, *sizes[key])
            continue
        boxes[key] = Box("group", name, f"Sub-topology {name}", x, y, *sizes[key])
        boxes |= {inner: box._replace(x=box.x + x, y=box.y + y) for inner, box in insides[key][0].items()}
    return Layout(boxes, _edges(graph, reads, writes), whole.width, whole.height)


def arrange(links: Links, sizes: Mapping[str, Size]) -> tuple[dict[str, tuple[float, float]], Size]:
    """Rows of things, each below what leads to it and near it.

    >>> arrange({"a": ["b"], "b": []}, {"a": Size(10, 10), "b": Size(10, 10)})[0]
    {'a': (0.0, 0.0), 'b': (0.0, 44.0)}
    """
    rows = _rows(links)
    widths = [sum(sizes[key].width for key in row) + GAP_X * (len(row) - 1) for row in rows]
    widest, y = max(widths, default=0.0), 0.0
    places: dict[str, tuple[float, float]] = {}
    for row, width in zip(rows, widths, strict=True):
        x = (widest - width) / 2
        for key in row:
            places[key] = (x, y)
            x += sizes[key].width + GAP_X
        y += max(sizes[key].height for key in row) + GAP_Y
    return places, Size(widest, max(0.0, y - GAP_Y))


def _rows(links: Links) -> list[list[str]]:
    ranks, above = _ranks(links)
    rows: list[list[str]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for key in links:
        rows[ranks[key]].append(key)
    middle: dict[str, float] = {}
    for row in rows:
        order = {key: i for i, key in enumerate(row)}
        row.sort(key=_near(above, middle, order))
        middle |= {key: (i + 0.5) / len(row) for i, key in enumerate(row)}
    return rows


def _near(
    above: Mapping[str, list[str]], middle: Mapping[str, float], order: Mapping[str, int]
) -> Callable[[str], tuple[float, int]]:
    """By the middle of what is above a thing; else in the order in which things were added."""

    def place(key: str) -> tuple[float, int]:
        known = [middle[parent] for parent in above[key] if parent in middle]
        return (sum(known) / len(known) if known else 0.5, order[key])

    return place


def _ranks(links: Links) -> tuple[dict[str, int], dict[str, list[str]]]:
    """How many things are above each, and which are next to it; what leads back up is not counted."""
    above: dict[str, list[str]] = {key: [] for key in links}
    done: list[str] = []
    state: dict[str, bool] = {}  # False: on the way to here; True: done
    for start in [*(k for k in links if not any(k in some for some in links.values())), *links]:
        waiting = [(start, False)]
        while waiting:
            key, is_over = waiting.pop()
            if is_over:
                state[key] = True
                done.append(key)
            elif key not in state:
                state[key] = False
                waiting.append((key, True))
                waiting += [(child, False) for child in reversed(links[key])]
    place = {key: -i for i, key in enumerate(done)}
    for key, children in links.items():
        for child in children:
            if place[child] > place[key]:
                above[child].append(key)
    ranks: dict[str, int] = {}
    for key in reversed(done):
        ranks[key] = max((ranks[parent] + 1 for parent in above[key]), default=0)
    return ranks, above


# ------------------------------------------------------------------------------------------------ inside, and between
def _inside(graph: Graph, group: Sequence[str]) -> tuple[dict[str, Box], Size]:
    """The nodes and stores of a sub-topology, as if it were alone, and how large it is."""
    members = set(group)
    links: dict[str, list[str]] = {}
    for name in sorted(group, key=list(graph.nodes).index):
        links[f"node {name}"] = [f"node {child}" for child in graph.children[name] if child in members]
    stores = dict.fromkeys(store for name in group for store in graph.node_stores[name])
    for store in stores:
        users = [name for name in group if store in graph.node_stores[name]]
        parents = [parent for name in users for parent in graph.parents[name] if parent in members]
        links[f"store {store}"] = []
        if parents:  # beside the first that uses it
            links[f"node {parents[0]}"] = [*links[f"node {parents[0]}"], f"store {store}"]
    sizes = {key: _size(key.partition(" ")[2]) for key in links}
    places, whole = arrange(links, sizes)
    boxes: dict[str, Box] = {}
    for key, (x, y) in places.items():
        kind, _, name = key.partition(" ")
        of_kind: Kind = "store" if kind == "store" else "node"
        boxes[key] = Box(of_kind, name, short(name), x + PAD, y + PAD + TITLE, *sizes[key])
    title = _CHARACTER * len("Sub-topology 00") + 2 * PAD
    return boxes, Size(max(whole.width + 2 * PAD, title), whole.height + 2 * PAD + TITLE)


def _topics(graph: Graph) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Which nodes read and write each topic."""
    reads: dict[str, list[str]] = {}
    writes: dict[str, list[str]] = {}
    for name, node in graph.nodes.items():
        if isinstance(node, Source):
            for topic in node.topics if node.pattern is None else (node.pattern.pattern,):
                reads.setdefault(topic, []).append(name)
        elif isinstance(node, Sink):
            topic = node.topic if isinstance(node.topic, str) else f"chosen by {name}"
            writes.setdefault(topic, []).append(name)
    return reads, writes


def _group_of(graph: Graph, node: str) -> int:
    return next(number for number, group in enumerate(graph.groups) if node in group)


def _edges(
    graph: Graph, reads: Mapping[str, list[str]], writes: Mapping[str, list[str]]
) -> list[tuple[str, str, bool]]:
    inner = [(f"node {n}", f"node {child}", False) for n in graph.nodes for child in graph.children[n]]
    stores = [(f"node {n}", f"store {store}", True) for n in graph.nodes for store in graph.node_stores[n]]
    into = [(f"topic {topic}", f"node {n}", False) for topic, nodes in reads.items() for n in nodes]
    out = [(f"node {n}", f"topic {topic}", False) for topic, nodes in writes.items() for n in nodes]
    return [*into, *inner, *stores, *out]


def _size(name: str) -> Size:
    return Size(max(90.0, len(short(name)) * _CHARACTER + 24), HEIGHT)


def short(name: str) -> str:
    """A name as far as there is room for it; generated ones differ at the end.

    >>> short("a" * 30 + "b" * 30)
    'aaaaaaaaaaaaaaaaaaaaa…bbbbbbbbbbbbbbbbbbbbbb'
    """
    return name if len(name) <= _LONGEST else f"{name[:21]}…{name[-22:]}"
