"""HTML for notebooks: tables of records and entries, and pictures. What is not markup of this module is escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import Any

ROWS = 50  # that a table shows
_LONGEST = 300  # characters of a cell
_STYLE = "text-align:left;font-family:ui-monospace,monospace;font-size:12px;white-space:pre-wrap"


def shorten(value: Any, longest: int = _LONGEST) -> str:
    """The text of a key or value: strings as they are, everything else as Python writes it, cut off if it is long.

    >>> shorten("tea"), shorten({"n": 1}), len(shorten("x" * 1000))
    ('tea', "{'n': 1}", 301)
    """
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= longest else text[:longest] + "…"


def render_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str = "") -> str:
    """An HTML table of at most `ROWS` rows; a last row says if there are more.

    >>> "&lt;b&gt;" in render_table(["key"], [["<b>"]])
    True
    """
    heads = "".join(f'<th style="text-align:left">{escape(column)}</th>' for column in columns)
    left = iter(rows)
    shown = [_render_row(row) for row in islice(left, ROWS)]
    if next(left, None) is not None:
        shown.append(f'<tr><td colspan="{len(columns)}">… and more: the first {ROWS} are shown</td></tr>')
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{heads}</tr></thead><tbody>{''.join(shown)}</tbody></table>"


def render_picture(svg: str, text: str) -> str:
    """An SVG picture as an image: its styles do not reach the page around it, and scripts in it do not run.

    >>> render_picture("<svg/>", "a <topology>")[:49]
    '<img style="background:#fff" alt="a &lt;topology&'
    """
    data = b64encode(svg.encode()).decode()
    return f'<img style="background:#fff" alt="{escape(text)}" src="data:image/svg+xml;base64,{data}">'


def _render_row(row: Sequence[Any]) -> str:
    return "<tr>" + "".join(f'<td style="{_STYLE}">{escape(shorten(cell))}</td>' for cell in row) + "</tr>"
