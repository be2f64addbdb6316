"""`headrace rescale` gives a sub-topology behind a repartition another number of tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import Admin, Producer, serde
from headrace.checkpoint.storage import open_storage
from headrace.log.open import open_log
from tests.checkpoint.cluster import Cluster, Ground
from tests.checkpoint.programs import Program, count_words

PROGRAM = "from tests.checkpoint.programs import count_words"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A word count that has run, in a folder of its own: its options for commands, and one more life of it."""
    (tmp_path / "words.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    log = f"file:{tmp_path}/log"
    with Admin(log) as admin, Producer(log, key=serde.STRING, value=serde.STRING) as producer:
        admin.create_topic("lines", partitions=2)
        admin.create_topic("out")
        for number in range(30):
            producer.send("lines", f"line {number}", f"a b{number} c{number % 5}")

    def live() -> Cluster:
        ground = Ground(log=open_log(log), storage=open_storage(tmp_path / "checkpoint"))
        cluster = Cluster(ground, Program(count_words, {}), limit=100)
        cluster.run()
        return cluster

    live().close()
    return ["--application-id", "app", "--log", log, "--checkpoint", f"{tmp_path}/checkpoint"], live


def test_the_state_is_divided_and_the_application_goes_on_with_it(headrace, words):
    options, live = words
    done = headrace("rescale", "words:count_words", "--subtopology", 1, "--partitions", 5, *options, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["subtopology"], found["before"], found["after"]) == (1, 2, 5)
    assert found["entries"] > 36
    assert found["bytes"] > 0
    again = live()
    assert again.tasks[1] == 5
    again.close()
    text = headrace("rescale", "words:count_words", "--subtopology", 1, "--partitions", 3, *options)
    assert "Sub-topology 1 had 5 tasks and has 3:" in text.err


@pytest.mark.parametrize(
    "subtopology, why",
    [(0, "reads lines from the log, and has a task for each"), (7, r"there is no sub-topology 7 (there are: 0, 1, 2)")],
)
def test_what_cannot_be_rescaled_is_refused_with_the_reason(headrace, words, subtopology, why):
    done = headrace("rescale", "words:count_words", "--subtopology", subtopology, "--partitions", 5, *words[0])
    assert done.code == 1
    assert why in done.err
