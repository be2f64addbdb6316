"""The board for Grafana asks for nothing that `/metrics` does not give."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.query.programs import finished
from tests.web.servers import FakeApplication, ask, counted, ends, served

BOARD = Path(__file__).parents[2] / "contrib/grafana/headrace.json"
ASKED = re.compile(r"\bheadrace_\w+")
GROUPED = re.compile(r"\bby \((\w+)\)")


@pytest.fixture(scope="module")
def board():
    return json.loads(BOARD.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def given():
    """The names of all samples, each with the labels that it has."""
    cluster = finished(limit=3)
    application = FakeApplication(
        ends=ends(cluster),
        phases={4: {"plan": 10.0}},
        **counted(),
    )
    with served(cluster, application) as server:
        text = ask(server.url, "/metrics").body.decode()
    families = list(text_string_to_metric_families(text))
    # Nothing was dropped: the counter is there all the same, under the name that its samples will have.
    dropped = {f"{family.name}_total": {"reason"} for family in families if family.name == "headrace_dropped_records"}
    return dropped | {sample.name: set(sample.labels) for family in families for sample in family.samples}


def queries(board):
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_every_metric_that_it_asks_for_is_given(board, given):
    asked = {name for query in queries(board) for name in ASKED.findall(query)}
    assert asked - given.keys() == set()
    variables = {name for v in board["templating"]["list"] for name in ASKED.findall(json.dumps(v["query"]))}
    assert variables - given.keys() == set()


def test_it_groups_by_labels_that_the_metrics_have(board, given):
    for query in queries(board):
        for label in GROUPED.findall(query):
            (name,) = ASKED.findall(query)
            assert label in given[name], query


def test_every_metric_that_is_given_is_shown(board, given):
    asked = " ".join(queries(board))
    parts = re.compile(r"_(created|sum|count)$")
    assert {name for name in given if not parts.search(name) and name not in asked} == set()


@pytest.mark.parametrize(
    "title, metric",
    [
        ("State of the application", "headrace_state"),
        ("Records in", "headrace_records_in_total"),
        ("Records out", "headrace_records_out_total"),
        ("Dropped by reason", "headrace_dropped_records_total"),
        ("Lag", "headrace_lag_records"),
        ("Batch phases", "headrace_batch_phase_seconds"),
        ("State size", "headrace_state_bytes"),
    ],
)
def test_what_matters_has_a_panel(board, title, metric):
    (panel,) = [panel for panel in board["panels"] if panel["title"] == title]
    assert metric in ASKED.findall(panel["targets"][0]["expr"])


def test_panels_have_ids_of_their_own_and_do_not_overlap(board):
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) == 23
