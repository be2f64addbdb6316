"""What a start changes in a checkpoint, as the dashboard shows it: the last start, and the next one."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from headrace import StreamsBuilder, Topology, serde
from headrace.checkpoint.storage import DiskStorage
from headrace.cli.dashboard import open_view
from headrace.log import open_log
from headrace.query import Follower
from headrace.query.status import decode_slots
from headrace.web import ApplicationView, Server
from tests.checkpoint.cluster import Cluster, Ground
from tests.checkpoint.programs import Program
from tests.query.programs import feed, finished
from tests.web.servers import FakeApplication, ask

PROGRAM = """
from headrace import Application
from tests.web.test_changes import build

app = Application("app", build({stores!r}), {log!r}, checkpoint="another one")
"""


def build(stores: list[str]) -> Topology:
    builder = StreamsBuilder()
    builder.table("states", key=serde.STRING, value=serde.STRING, store="states")
    lines = builder.stream("lines", key=serde.STRING, value=serde.STRING).group_by_key()
    for store in stores:
        lines.count(store=store)
    return builder.build()


def program(*stores: str) -> Program:
    return Program(lambda: build([*stores]), {"lines": [], "states": []}, 1)


def changes(plan: Any) -> list[tuple[str, str]]:
    return [(change["name"], change["action"]) for change in plan["changes"] if change["action"] != "kept"]


def test_a_start_says_what_it_has_changed_and_the_next_one_that_it_changed_nothing():
    first = finished(program("counts"))
    assert first.coordinator.changes is None, "there was no checkpoint that could have changed"
    first.close()
    second = Cluster(first.ground, program("counts", "more"))
    assert second.coordinator.changes is not None
    assert changes(second.coordinator.changes.to_json()) == [("more", "new")]
    second.run()
    second.close()
    third = Cluster(first.ground, program("counts", "more"))
    assert third.coordinator.changes is None
    third.close()


def test_the_heartbeat_carries_the_changes_and_whether_a_batch_can_run():
    told = decode_slots({"ready": False, "changes": {"batch": 7}})
    assert (told["ready"], told["changes"]) == (False, {"batch": 7})
    assert decode_slots({})["ready"], "an earlier version does not tell"


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint, its own program, and two that have changed: a store more, and a store with another name."""
    address = f"file:{tmp_path}/log"
    with closing(open_log(address)) as log:
        for topic in ("lines", "states", "out"):
            log.create_topic(topic, 1)
        feed(log, [("ada", "x")] * 5)
        cluster = Cluster(Ground(log=log, storage=DiskStorage(tmp_path / "checkpoint")), program("counts"))
        cluster.run()
        cluster.close()
    for name, stores in {"same": ["counts"], "other": ["totals"], "larger": ["counts", "more"]}.items():
        (tmp_path / f"{name}_program.py").write_text(PROGRAM.format(stores=stores, log=address))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "checkpoint"


def test_a_program_that_has_changed_is_shown_with_the_plan_of_its_next_start(changed: Path):
    same = open_view(str(changed), "same_program:app")
    assert same.topology is not None
    assert same.plan is None
    larger = open_view(str(changed), "larger_program:app")
    larger.follower.refresh()
    found = larger.plan_json()
    assert (found["last"], found["next"]["decisions"], changes(found["next"])) == (None, 0, [("more", "new")])
    assert [group["nodes"][0]["stores"] for group in larger.topology_json()["subtopologies"]] == [
        ["states"],
        ["counts"],
    ]


@pytest.mark.slow
def test_the_page_shows_what_the_next_start_changes_and_what_is_to_be_decided(changed: Path, browser: Browser):
    view = open_view(str(changed), "other_program:app")
    with Server(view, insecure=True, interval=50) as server, browser.new_page() as page:
        page.goto(server.url)
        expect(page.locator("#changes-title")).to_contain_text("What the next start changes")
        expect(page.locator("#changes .bad").first).to_contain_text("decide: ")
        expect(page.locator("#changes-note")).to_contain_text("to decide: the application does not start before")
        shown = " ".join(page.locator("#changes li b").all_text_contents())
        assert "totals" in shown
        assert "states" not in shown, "what is kept needs no line"


def test_health_waits_for_the_first_batch_that_can_run():
    cluster = finished(limit=3)
    application = FakeApplication(ready=False)
    view = ApplicationView(follower=Follower(cluster.storage), application=application)
    with Server(view, insecure=True) as server:
        answer = ask(server.url, "/health")
        assert (answer.status, answer.json["healthy"]) == (503, False)
        assert "no batch can run" in answer.json["verdict"]
        application.reported = replace(application.reported, ready=True)
        assert ask(server.url, "/health").status == 200
