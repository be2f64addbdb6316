"""A picture of a topology as SVG: sub-topologies are boxes, stores are cylinders, topics are rounded.

`lay_out` computes the position of everything, `picture` draws it. There are two layered layouts, one inside the other:
inside a sub-topology, each node stands in a row below all nodes that feed it, with its stores beside it; outside,
sub-topologies and topics do the same. An edge that leads back up does not affect the order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal, NamedTuple

from headrace.topology.graph import Graph
from headrace.topology.nodes import Sink, Source

Kind = Literal["node", "store", "topic", "group"]
Links = Mapping[str, Sequence[str]]
GAP_X, GAP_Y, PAD, TITLE, HEIGHT = 28.0, 34.0, 18.0, 24.0, 34.0
_CHARACTER, _LONGEST = 7.3, 44  # the width of a character, and how many of a name are shown
MARGIN = 20.0
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML, however it is escaped
STYLE = """\
text { font: 12px ui-monospace, Menlo, Consolas, monospace; text-anchor: middle; fill: #1b1f24 }
.back { fill: #ffffff } .group { fill: #f4f6f8; stroke: #b6bec8 } .title { fill: #57606a; text-anchor: start }
.node { fill: #ffffff; stroke: #57606a } .topic { fill: #e7f0fb; stroke: #2f6fb5 }
.store { fill: #fdf3dc; stroke: #a9791b } .edge { fill: none; stroke: #57606a } .use { stroke-dasharray: 3 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ec } .back { fill: #15191e } .group { fill: #1d232a; stroke: #4a535e } .title { fill: #9aa4af }
  .node { fill: #262d36; stroke: #9aa4af } .topic { fill: #16304d; stroke: #6aa5e6 }
  .store { fill: #3d2f10; stroke: #d7a94a } .edge { stroke: #9aa4af }
}"""

TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#57606a"/></marker></defs>'
)


# ------------------------------------------------------------------------------------------------------------ layout
class Box(NamedTuple):
    """A node, store, topic or sub-topology with its position; `label` is `name`, shortened if it is long."""

    kind: Kind
    name: str
    label: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """All boxes by key, the edges between them as pairs of keys, and the size of the picture."""

    boxes: dict[str, Box] = field(default_factory=dict[str, Box])
    edges: list[tuple[str, str, bool]] = field(default_factory=list[tuple[str, str, bool]])  # True: to a store
    width: float = 0.0
    height: float = 0.0


class Size(NamedTuple):
    width: float
    height: float


def lay_out(graph: Graph) -> Layout:
    """The positions of all sub-topologies, nodes, stores and topics."""
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
    """Positions in rows: each key is below the keys that lead to it, and near them.

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
    """Sorts a row by the middle of what is above each key, then in the order in which keys were added."""

    def place(key: str) -> tuple[float, int]:
        known = [middle[parent] for parent in above[key] if parent in middle]
        return (sum(known) / len(known) if known else 0.5, order[key])

    return place


def _ranks(links: Links) -> tuple[dict[str, int], dict[str, list[str]]]:
    """The row of each key, and the keys that lead to it; edges that lead back up are not counted."""
    above: dict[str, list[str]] = {key: [] for key in links}
    done: list[str] = []
    state: dict[str, bool] = {}  # False: being visited; True: done
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
    """The nodes and stores of one sub-topology, laid out alone, and its size."""
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
    """A name without its middle, if it is long; generated names differ at the end.

    >>> short("a" * 30 + "b" * 30)
    'aaaaaaaaaaaaaaaaaaaaa…bbbbbbbbbbbbbbbbbbbbbb'
    """
    return name if len(name) <= _LONGEST else f"{name[:21]}…{name[-22:]}"


# --------------------------------------------------------------------------------------------------------------- SVG
def picture(graph: Graph) -> str:
    """The SVG text of a topology. It refers to nothing outside, and is the same for the same topology."""
    layout = lay_out(graph)
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    groups = [_shape(box) for box in layout.boxes.values() if box.kind == "group"]
    others = [_shape(box) for box in layout.boxes.values() if box.kind != "group"]
    size = f'width="{width:.0f}" height="{height:.0f}"'
    corner = f"{-MARGIN:.0f}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="{corner} {corner} {width:.0f} {height:.0f}">',
        f"<title>Topology of {len(graph.groups)} sub-topologies</title>",
        f"<style>\n{STYLE}\n</style>",
        TIP,
        f'<rect class="back" x="{corner}" y="{corner}" {size}/>',
        *groups,
        *_curves(layout),
        *others,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _shape(box: Box) -> str:
    x, y, w, h = box.x, box.y, box.width, box.height
    label, name = plain(box.label), plain(box.name)
    if box.kind == "group":
        outline = f'<rect class="group" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="8"/>'
        return f'<g>{outline}<text class="title" x="{x + 12:.1f}" y="{y + 20:.1f}">{label}</text></g>'
    if box.kind == "store":
        side = f"M{x:.1f},{y + 5:.1f} v{h - 10:.1f} a{w / 2:.1f},5 0 0 0 {w:.1f},0 v{10 - h:.1f}"
        lid = f"a{w / 2:.1f},5 0 0 0 {-w:.1f},0 a{w / 2:.1f},5 0 0 0 {w:.1f},0"
        outline = f'<path class="store" d="{side} {lid}"/>'
    else:
        round_by = h / 2 if box.kind == "topic" else 3
        outline = (
            f'<rect class="{box.kind}" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{round_by:.0f}"/>'
        )
    text = f'<text x="{x + w / 2:.1f}" y="{y + h / 2 + 5:.1f}">{label}</text>'
    return f"<g><title>{name}</title>{outline}{text}</g>"


def _curves(layout: Layout) -> list[str]:
    return [
        _curve(layout.boxes[start], layout.boxes[end], is_use=is_use)
        for start, end, is_use in layout.edges
        if start in layout.boxes and end in layout.boxes
    ]


def _curve(start: Box, end: Box, *, is_use: bool) -> str:
    """A line from the lower edge of one box to the upper edge of the other, sideways or around if it must be."""
    tip = "" if is_use else ' marker-end="url(#tip)"'
    kind = "edge use" if is_use else "edge"
    if is_use and end.y < start.y:
        start, end = end, start
    x1, y1, x2, y2 = start.x + start.width / 2, start.y + start.height, end.x + end.width / 2, end.y
    if end.y > start.y:
        bend = max(14.0, (y2 - y1) / 2)
        path = f"M{x1:.1f},{y1:.1f} C{x1:.1f},{y1 + bend:.1f} {x2:.1f},{y2 - bend:.1f} {x2:.1f},{y2:.1f}"
    elif end.y == start.y:
        leftward = end.x < start.x
        x1, x2 = (start.x, end.x + end.width) if leftward else (start.x + start.width, end.x)
        path = f"M{x1:.1f},{start.y + start.height / 2:.1f} L{x2:.1f},{end.y + end.height / 2:.1f}"
    else:
        x1, y1, x2, y2 = start.x + start.width, start.y + start.height / 2, end.x + end.width, end.y + end.height / 2
        out = max(x1, x2) + 40
        path = f"M{x1:.1f},{y1:.1f} C{out:.1f},{y1:.1f} {out:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
    return f'<path class="{kind}" d="{path}"{tip}/>'


def plain(name: str) -> str:
    """A name as text of an XML document.

    >>> plain('<b>"&')
    '&lt;b&gt;&quot;&amp;'
    """
    return escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", name)).replace("\n", " ")
