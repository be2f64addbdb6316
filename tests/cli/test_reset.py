"""`headrace reset`: state is dropped, positions are chosen, at once or not at all."""

from __future__ import annotations

import json
from functools import partial

import pytest

from headrace import StreamsBuilder
from headrace.checkpoint.copy import copy_checkpoint
from headrace.checkpoint.fingerprint import Fingerprint, SubtopologyShape
from headrace.checkpoint.ledger import Ledger, manifest_numbers
from headrace.checkpoint.ownership import Ownership, this_process
from headrace.checkpoint.recovery import recover_ledger
from headrace.checkpoint.steps import DELIVERY
from headrace.checkpoint.storage import open_storage
from headrace.cli.reset import find_global_topics, load_checkpoint, reset_checkpoint
from headrace.errors import FencedError
from headrace.log import open_log
from headrace.log.protocol import Records
from headrace.model.clock import SystemClock
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from tests.checkpoint.cluster import Cluster, Ground, Killed, Killer, outputs
from tests.checkpoint.programs import TAGS, TEXTS, WORDS, Program

LINES = TopicPartition("lines", 0)


@pytest.fixture
def log(address):
    log = open_log(address)
    log.create_topic("lines")
    log.create_topic("out")
    WORDS.feed(log)
    yield log
    log.close()


@pytest.fixture
def ground(log, tmp_path):
    return Ground(log=log, storage=open_storage(tmp_path / "checkpoint"), state=tmp_path / "state")


@pytest.fixture
def reset(headrace, address, tmp_path, ground):
    """The command, for an application that has stopped."""

    def run(*arguments):
        places = ("--log", address, "--checkpoint", tmp_path / "checkpoint", "--state-dir", tmp_path / "states")
        return headrace("reset", "--application-id", "app", *places, *arguments)

    return run


def played(ground, program=WORDS, batches=1_000):
    """Runs a program to its end, and stops it."""
    cluster = Cluster(ground, program, limit=3)
    cluster.run(batches)
    cluster.close()


def written(log):
    """What was written, without offsets."""
    return [row[1:] for row in outputs(log)["out", 0]]


# ------------------------------------------------------------------------------------------------- what a reset does
def test_the_next_start_begins_at_the_beginning_without_state(reset, ground, log):
    played(ground)
    first = written(log)
    assert reset("--input-topics", "lines").code == 0
    played(ground)
    assert written(log) == first * 2


def test_a_dry_run_shows_everything_and_changes_nothing(reset, ground, log, tmp_path):
    played(ground)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "log" not in path.parts}
    outcome = reset("--input-topics", "lines", "--dry-run")
    assert outcome.code == 0
    assert outcome.out.splitlines()[1].split() == ["lines", "0", "input", str(len(WORDS.inputs["lines"])), "0"]
    assert outcome.err.endswith("Nothing was changed: this was a dry run.\n")
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "log" not in path.parts}
    assert after == before


def test_another_topology_may_follow(reset, ground, log):
    played(ground)
    reset("--input-topics", "lines")
    played(ground, TAGS)


def test_topics_that_are_not_named_stay_where_they_are(reset, ground, log):
    played(ground)
    first = written(log)
    outcome = reset("--json")
    assert json.loads(outcome.out)["positions"] == [
        {"topic": "lines", "partition": 0, "as": "not named", "position": 7, "new_position": 7}
    ]
    played(ground)
    assert written(log) == first


def test_local_state_is_dropped(reset, ground, tmp_path):
    played(ground)
    (tmp_path / "states/app/0_0").mkdir(parents=True)
    (tmp_path / "states/other").mkdir()
    reset("--input-topics", "lines")
    assert [path.name for path in (tmp_path / "states").iterdir()] == ["other"]


def test_a_link_in_the_place_of_local_state_is_not_followed(reset, ground, tmp_path):
    played(ground)
    kept = tmp_path / "elsewhere"
    kept.mkdir()
    (kept / "file").touch()
    (tmp_path / "states").mkdir()
    (tmp_path / "states/app").symlink_to(kept)
    reset("--input-topics", "lines")
    assert (kept / "file").exists()


def test_nothing_is_reset_if_the_state_directory_is_not_safe(reset, ground, log, tmp_path):
    played(ground)
    first = written(log)
    (tmp_path / "states/app").mkdir(parents=True)
    (tmp_path / "states/app/file").touch()
    (tmp_path / "states").chmod(0o777)  # another user can put a link there
    outcome = reset("--input-topics", "lines")
    assert outcome.code == 1
    assert "states can be written by every user" in outcome.err
    assert (tmp_path / "states/app/file").exists()
    played(ground)
    assert written(log) == first


@pytest.mark.parametrize("id_", ["..", "../elsewhere", "/srv"])
def test_an_id_that_is_no_name_is_refused(headrace, address, id_):
    outcome = headrace("reset", "--application-id", id_, "--log", address, "--input-topics", "lines")
    assert outcome.code == 2
    assert "letters, digits" in outcome.err


def test_what_was_committed_is_delivered_before(reset, ground, log):
    killer = Killer(f"before {DELIVERY}", 2)
    cluster = Cluster(ground, WORDS, limit=3, at_step=killer)
    with pytest.raises(Killed):
        cluster.run()
    cluster.kill()
    assert written(log) == []
    assert reset("--input-topics", "lines", "--to-latest", "--force").code == 0
    assert {b"A B A", b"B C", b"C C C"} <= {row[1] for row in written(log)}


# --------------------------------------------------------------------------------------------------- where it goes on
WAYS = {
    (): 0,
    ("--to-earliest",): 0,
    ("--to-latest",): 7,
    ("--to-offset", 4): 4,
    ("--to-offset", 99): 7,
    ("--shift-by", -2): 5,
    ("--shift-by", 5): 7,
    ("--to-datetime", "1970-01-01T00:00:00.021"): 3,
    ("--to-datetime", "1970-01-01T01:00:00.030+01:00"): 3,
    ("--to-datetime", "2030-01-01"): 7,
    ("--by-duration", "P1D"): 7,
    ("--by-duration", "P40000D"): 0,
}


def test_positions_are_chosen_in_kafkas_ways(reset, ground):
    assert len(WORDS.inputs["lines"]) == 7  # at 0, 10, … 60 ms
    played(ground)
    found = {way: json.loads(reset("--input-topics", "lines", "--dry-run", "--json", *way).out) for way in WAYS}
    assert {way: plan["positions"][0]["new_position"] for way, plan in found.items()} == WAYS


def test_positions_can_come_from_a_file(reset, ground, tmp_path):
    played(ground)
    (tmp_path / "offsets.csv").write_text("lines,0,5\n")
    assert reset("--input-topics", "lines", "--from-file", tmp_path / "offsets.csv").code == 0
    assert load_checkpoint(ground.storage).ledger.positions == {LINES: 5}
    (tmp_path / "offsets.csv").write_text("lines,0\n")
    assert "line 1: a line is topic,partition,offset" in reset("--from-file", tmp_path / "offsets.csv").err
    (tmp_path / "offsets.csv").write_text("out,0,1\n")
    assert "names out-0, which is not" in reset("--input-topics", "lines", "--from-file", tmp_path / "offsets.csv").err


def test_intermediate_topics_are_skipped(reset, ground, log):
    played(ground)
    assert reset("--intermediate-topics", "out", "--input-topics", "lines").code == 0
    end = log.extents(["out"])["out", 0].end
    assert load_checkpoint(ground.storage).ledger.positions == {LINES: 0, TopicPartition("out", 0): end}


def test_topics_of_global_tables_are_those_that_no_sub_topology_reads():
    ledger = Ledger()
    ledger.fingerprint = Fingerprint((SubtopologyShape(0, ("lines", "a.*"), 1, ()),), (), {})
    ledger.topics = {"lines": "1", "abc": "2", "rules": "3"}
    assert find_global_topics(ledger) == {"rules"}


def test_a_topic_that_was_made_again_can_be_read(reset, ground, log):
    played(ground)
    log.delete_topic("lines")
    log.create_topic("lines")
    log.append([(LINES, Records([b"k"], [b"new"], [1]))])
    assert reset("--input-topics", "lines").code == 0
    played(ground)
    assert written(log)[-1][1] == b"1"


def test_internal_topics_of_the_application_are_deleted_and_no_others(reset, ground, log):
    played(ground)
    log.create_topic("app-words-repartition")
    assert reset("--internal-topics", "lines").code == 1
    assert reset("--internal-topics", "app-words-repartition").code == 0
    assert sorted(log.topics()) == ["lines", "out"]


# --------------------------------------------------------------------------------------------------------- refusals
def test_an_application_that_runs_is_refused_unless_forced(reset, ground, address, tmp_path):
    played(ground)
    owner = Ownership.claim(ground.storage, SystemClock(), process=this_process(), lease_ms=60_000, last_epoch=2)
    for more in ((), ("--dry-run",)):
        refused = reset("--input-topics", "lines", *more)
        assert (refused.code, refused.out) == (1, "")
        assert "another instance runs on the directory" in refused.err
    assert reset("--input-topics", "lines", "--force").code == 0
    with pytest.raises(FencedError):
        owner._renew(0)


@pytest.mark.parametrize(
    "arguments, code, sentence",
    [
        (["--to-latest", "--to-offset", "1"], 2, "--to-offset and --to-latest contradict each other"),
        (["--input-topics", "a", "--intermediate-topics", "a"], 2, "a cannot be an input topic and an intermediate"),
        (["--input-topics", "none"], 1, "there is no topic 'none'"),
        (["--input-topics", "out", "--shift-by", "1"], 1, "out-0 has none"),
        (["--by-duration", "1 hour"], 2, "--by-duration is PnDTnHnMnS"),
        (["--to-datetime", "noon"], 2, "--to-datetime is YYYY-MM-DD"),
    ],
)
def test_what_cannot_be_is_refused(reset, ground, arguments, code, sentence):
    played(ground, batches=1)
    numbers = manifest_numbers(ground.storage)
    outcome = reset(*arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert sentence in outcome.err
    assert manifest_numbers(ground.storage) == numbers


def test_a_checkpoint_that_is_not_there_or_anothers_is_refused(headrace, reset, ground, address, tmp_path):
    missing = headrace("reset", "--application-id", "app", "--log", address, "--checkpoint", tmp_path / "none")
    assert (missing.code, "there is no checkpoint in" in missing.err) == (1, True)
    assert not (tmp_path / "none").exists()
    played(ground, batches=1)
    others = headrace("reset", "--application-id", "other", "--log", address, "--checkpoint", tmp_path / "checkpoint")
    assert (others.code, "is the checkpoint of 'app', not of 'other'" in others.err) == (1, True)


def test_a_damaged_checkpoint_can_be_reset(reset, ground, log, tmp_path):
    played(ground)
    first = written(log)
    for path in (tmp_path / "checkpoint/manifests").iterdir():
        path.write_bytes(path.read_bytes()[:-30])
    outcome = reset("--input-topics", "lines")
    assert outcome.code == 0
    assert "Note: the manifest manifests/" in outcome.err
    played(ground)
    assert written(log) == first * 2


def test_a_lost_checkpoint_can_be_created_again(reset, ground, log, tmp_path):
    played(ground)
    first = written(log)
    for path in sorted((tmp_path / "checkpoint").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert reset("--input-topics", "lines").code == 0
    played(Ground(log=log, storage=open_storage(tmp_path / "checkpoint"), state=tmp_path / "state"))
    assert written(log) == first * 2


# ---------------------------------------------------------------------------------------------------------- crashes
class Killing:
    """A storage or a log whose user is killed instead of the nth change to either."""

    def __init__(self, inner, left: list[int]) -> None:
        self._inner, self._left = inner, left

    def __getattr__(self, name):
        method = getattr(self._inner, name)
        return partial(self._change, method) if name in {"create", "delete", "deliver", "mark_delivered"} else method

    def _change(self, method, *arguments):
        self._left[0] -= 1
        if self._left[0] < 0:
            raise Killed(method.__name__)
        return method(*arguments)


def test_a_reset_that_is_killed_has_happened_or_not():
    happened, changes = [], 0
    while not happened or happened[-1] != "all":
        ground = Ground(log=WORDS.log(), storage=open_storage("memory:///"))
        played(ground)
        first, left = written(ground.log), [changes]
        try:
            reset_checkpoint(Killing(ground.storage, left), Killing(ground.log, left), "app", {LINES: 0}, force=True)  # pyright: ignore[reportArgumentType]
            happened.append("all")
        except Killed:
            happened.append("yes" if load_checkpoint(ground.storage).ledger.positions == {LINES: 0} else "no")
        played(ground)
        assert written(ground.log) == first * (1 if happened[-1] == "no" else 2)
        changes += 1
    assert sorted(set(happened)) == ["all", "no", "yes"]


def test_who_still_runs_can_commit_no_more(ground, log):
    cluster = Cluster(ground, WORDS, limit=2)
    cluster.run(1)
    reset_checkpoint(ground.storage, log, "app", {LINES: 0}, force=True)
    with pytest.raises(FencedError):
        cluster.run(1)
    cluster.kill()


def test_a_range_has_an_end_that_the_checkpoint_remembers(reset, ground):
    """The records have the times 0, 10, 20 … ms."""
    played(ground)
    span = ("--from-datetime", "1970-01-01T00:00:00.020", "--to-datetime", "1970-01-01T00:00:00.050")
    outcome = reset("--input-topics", "lines", *span, "--json")
    assert outcome.code == 0, outcome.err
    (row,) = [row for row in json.loads(outcome.out)["positions"] if row["topic"] == "lines"]
    assert (row["new_position"], row["stop_at"]) == (2, 5)
    played(ground)  # later manifests remember it, too
    assert recover_ledger(ground.storage, 1).stops == {LINES: 5}
    copied = open_storage("memory:///")
    copy_checkpoint(ground.storage, copied, "second")
    assert recover_ledger(copied, 1).stops == {LINES: 5}
    assert reset("--input-topics", "lines").code == 0
    assert recover_ledger(ground.storage, 1).stops == {}


def test_a_topic_that_has_grown_is_read_again_by_key(reset, ground, log):
    """Old records of a key are in its old partition, new ones in its new one: both reach the task of the key."""

    def build():
        builder = StreamsBuilder()
        builder.stream("keyed", **TEXTS).group_by_key(**TEXTS).count(store="counts").to_stream().map_values(str).to(
            "out", **TEXTS
        )
        return builder.build()

    program = Program(build, {})
    log.create_topic("keyed", 2)
    for partitions in (2, 5):
        if partitions > 2:
            log.add_partitions("keyed", partitions)
        for n in range(12):
            key = b"key %d" % n
            log.append([(TopicPartition("keyed", partition_of(key, partitions) or 0), Records([key], [b"v"], [n]))])
        played(ground, program)
    outcome = reset("--input-topics", "keyed", "--intermediate-topics", "lines")
    assert outcome.code == 0, outcome.err
    before = log.extents(["out"])[TopicPartition("out", 0)].end
    played(ground, program)
    again = [row[1:3] for chunk in log.read(TopicPartition("out", 0), before) for row in chunk.rows()]
    assert dict(again) == {b"key %d" % n: b"2" for n in range(12)}
