"""What notebooks show: HTML of topologies, records, timelines, stores and query results; the example notebook runs."""

from __future__ import annotations

import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from headrace import Record, Stores, StreamsBuilder, TimeWindows, serde
from headrace.query.queries import Position, QueryResult
from headrace.state.read_only import open_view
from headrace.testing import TopologyTestDriver, timeline

EVIL = "<script>alert('x')</script>"
TEXT: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def svg_in(html: str) -> str:
    found = re.search(r"base64,([^\"]+)", html)
    assert found is not None
    return b64decode(found[1]).decode()


def test_a_topology_is_a_picture() -> None:
    builder = StreamsBuilder()
    builder.stream("orders <b>", name="read").to("out")
    html = builder.build()._repr_html_()
    assert html.startswith("<img ")
    assert "read" in svg_in(html)
    assert "orders <b>" not in svg_in(html)


def test_a_record_is_a_table_and_what_users_put_into_it_is_escaped() -> None:
    html = Record(EVIL, {"note": EVIL}, 7, (("h", EVIL.encode()),))._repr_html_()
    assert "<table>" in html
    assert "<script>" not in html
    assert html.count("&lt;script&gt;") == 3


def test_a_timeline_is_a_picture() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).to("out", **TEXT)
    html = timeline(builder.build(), [("in", "k", EVIL, 0)])._repr_html_()
    assert "<script>" not in html
    assert "<script>" not in svg_in(html)
    assert "&lt;script&gt;" in svg_in(html)


def test_stores_and_views_are_tables() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXT).group_by_key()
    grouped.reduce(lambda a, b: b, store="last")
    grouped.windowed_by(TimeWindows.of(10)).count(store="windows")
    with TopologyTestDriver(builder.build()) as driver:
        empty = driver.store("last")._repr_html_()
        driver.input_topic("in", **TEXT).pipe_key_values([(f"{EVIL}{n:03}", EVIL) for n in range(60)])
        last, windows = driver.store("last"), driver.store("windows")._repr_html_()
        spec = Stores.key_value("last", **TEXT)
        view = open_view(spec, lambda: [last], "a view")._repr_html_()
        shown = last._repr_html_()
        assert shown == last._repr_html_()
    assert "store last: empty" in empty
    assert "<script>" not in shown + windows
    assert shown.count("<tr>") == 1 + 50 + 1  # the head, the first entries, and that there are more
    assert "the first 50 are shown" in shown
    assert '<th style="text-align:left">timestamp</th>' in shown
    assert "window start" in windows
    assert view == shown


def test_a_query_result_is_a_table_and_stays_whole() -> None:
    assert ">3<" in QueryResult(3, Position(7))._repr_html_()
    result = QueryResult(iter([("a", EVIL), ("b", "2")]), Position(7))
    entries = result.result
    html = result._repr_html_()
    assert "as of batch 7" in html
    assert "<script>" not in html
    assert html == result._repr_html_()
    assert list(entries) == [("a", EVIL), ("b", "2")]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_example_notebook_runs(path: Path, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    expected = [_html_of(cell) for cell in notebook.cells]
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [_html_of(cell) for cell in notebook.cells] == expected  # what is stored is what comes out


def _html_of(cell: object) -> list[object]:
    outputs = getattr(cell, "outputs", [])
    return [output.get("data", {}).get("text/html") or output.get("text") for output in outputs]
