"""Series over time as an SVG: one panel below the other, each with its lines, its scale and its legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, PANEL, LEFT, RIGHT, GAP, TOP = 860, 150, 70, 20, 56, 48
COLOURS = ("#0b6fb8", "#b07d00", "#1c7c44", "#7b4fb0")


class Panel(NamedTuple):
    """A title, a unit, and lines by name: a value for every time, or None where there is none."""

    title: str
    unit: str
    lines: Mapping[str, Sequence[float | None]]


def draw_chart(title: str, times: Sequence[float], warm_up: float, panels: Sequence[Panel]) -> str:
    """Returns the SVG. `times` are seconds; before `warm_up` nothing is judged, so that part is shaded.

    >>> svg = draw_chart("soak", [0, 1, 2], 1, [Panel("memory", "MB", {"driver": [1, 2, 2]})])
    >>> svg.count("<polyline"), "driver" in svg
    (1, True)
    """
    height = TOP + len(panels) * (PANEL + GAP)
    span = max(times[-1] - times[0], 1e-9)

    def x(time: float) -> float:
        return LEFT + (time - times[0]) / span * (WIDTH - LEFT - RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<g font-size="12" fill="#333"><rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for place, panel in enumerate(panels):
        top = TOP + place * (PANEL + GAP)
        # The scale is that of the time after the warm-up: what is higher before is cut.
        after = [at for at, time in enumerate(times) if time - times[0] >= warm_up] or range(len(times))
        known = [value for line in panel.lines.values() for at in after if (value := line[at]) is not None]
        most = 1.1 * max(known, default=1.0)
        bottom = top + PANEL
        parts += [
            f'<rect x="{LEFT}" y="{top}" width="{x(times[0] + warm_up) - LEFT:.1f}" height="{PANEL}" fill="#f0f2f5"/>',
            f'<path d="M{LEFT} {top}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="#999"/>',
            f'<text x="{LEFT}" y="{top - 6}" font-weight="bold">{escape(panel.title)}</text>',
            *(_label(LEFT - 6, bottom - share * PANEL + 4, share * most, panel.unit) for share in (0.0, 0.5, 1.0)),
            f'<text x="{WIDTH - RIGHT}" y="{bottom + 16}" text-anchor="end">{times[-1] - times[0]:,.0f} s</text>',
        ]
        for number, (name, line) in enumerate(panel.lines.items()):
            points = " ".join(
                f"{x(time):.1f},{bottom - min(value / most, 1.0) * PANEL:.1f}"
                for time, value in zip(times, line, strict=True)
                if value is not None
            )
            colour = COLOURS[number % len(COLOURS)]
            parts += [
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
                f'<text x="{LEFT + 110 * number}" y="{bottom + 16}" fill="{colour}">{escape(name)}</text>',
            ]
    return "\n".join([*parts, "</g></svg>", ""])


def _label(x: float, y: float, value: float, unit: str) -> str:
    return f'<text x="{x}" y="{y:.1f}" text-anchor="end">{value:,.0f} {escape(unit)}</text>'
