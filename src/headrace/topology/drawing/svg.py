"""A topology as an SVG picture: sub-topologies are boxes, stores cylinders, topics rounded."""

from __future__ import annotations

import re
from html import escape

from headrace.topology.drawing.layout import Box, Layout, lay_out
from headrace.topology.graph import Graph

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


def picture(graph: Graph) -> str:
    """The same text for the same topology, without anything from outside."""
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
    """From the lower edge to the upper one; to the side if it is beside, and around if it is above."""
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
    """A name as XML can have it.

    >>> plain('<b>"&')
    '&lt;b&gt;&quot;&amp;'
    """
    return escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", name)).replace("\n", " ")
