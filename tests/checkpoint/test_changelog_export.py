"""The state of an application goes to changelogs: once, as a whole, and only if nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.checkpoint.changelog_export import ChangelogExporter, Export, export_changelogs, ignore_export
from headrace.checkpoint.ownership import Ownership, this_process
from headrace.checkpoint.steps import DELIVERY
from headrace.checkpoint.storage import open_storage
from headrace.errors import AlreadyRunningError, CheckpointMismatchError, StreamsError
from headrace.log.open import open_log
from headrace.log.protocol import Records
from headrace.model.clock import SystemClock
from headrace.model.ids import TopicPartition
from tests.checkpoint.cluster import Cluster, Ground, Killed, Killer
from tests.checkpoint.programs import CONFIG, MANY_WORDS, REFERENCES, TAGS, WORDS, Program


def ground_of(program: Program, folder: Path) -> Ground:
    log = open_log(f"file:{folder}/log")
    for topic in (*program.inputs, "out"):
        log.create_topic(topic, program.partitions)
    program.feed(log)
    return Ground(log=log, storage=open_storage(folder / "checkpoint"), state=folder / "state")


def stopped(program: Program, folder: Path) -> Ground:
    """What an application leaves that has processed everything."""
    ground = ground_of(program, folder)
    cluster = Cluster(ground, program)
    cluster.run()
    cluster.coordinator.close()
    return ground


def exporter(ground: Ground, program: Program) -> ChangelogExporter:
    return ChangelogExporter(ground.storage, ground.log, "app", program.build().graph(), CONFIG)


def written(ground: Ground, program: Program, *, dry_run: bool = False) -> dict[str, Export]:
    found = export_changelogs(exporter(ground, program), dry_run=dry_run, on_export=ignore_export)
    return {export.store: export for export in found}


def rows(ground: Ground, topic: str) -> dict[bytes | None, bytes | None]:
    ends = {at: extent.end for at, extent in ground.log.extents([topic]).items()}
    chunks = (chunk for at, end in ends.items() if end for chunk in ground.log.read(at, 0, end))
    return {key: value for chunk in chunks for _, key, value, _, _ in chunk.rows()}


def test_every_entry_is_in_the_partition_of_its_task(tmp_path: Path):
    ground = stopped(MANY_WORDS, tmp_path)
    assert written(ground, MANY_WORDS)["counts"] == Export("counts", "app-counts-changelog", 3, 6, 6, 0)
    counts = {key: int.from_bytes(value or b"", "big") for key, value in rows(ground, "app-counts-changelog").items()}
    assert counts == {b"a": 8, b"b": 6, b"c": 8, b"d": 2, b"e": 2, b"f": 4}
    assert ground.log.topic("app-counts-changelog").config["cleanup.policy"] == "compact"
    assert ground.log.committed("app") == {TopicPartition("lines", part): 14 // 3 + (part < 2) for part in range(3)}


def test_what_is_there_is_not_written_again_and_what_is_gone_is_deleted(tmp_path: Path):
    ground = stopped(WORDS, tmp_path)
    first = written(ground, WORDS)
    more = Records.from_rows([(b"gone", bytes(8), 5, ()), (b"a", bytes(8), 6, ()), (b"never", None, 7, ())])
    ground.log.append([(TopicPartition("app-counts-changelog", 0), more)])
    expected = {
        "counts": first["counts"]._replace(written=1, deleted=1),
        "windows": first["windows"]._replace(written=0),
    }
    assert written(ground, WORDS, dry_run=True) == expected
    assert written(ground, WORDS) == expected
    assert rows(ground, "app-counts-changelog")[b"gone"] is None
    assert {export[3:] for export in written(ground, WORDS).values()} == {
        (export.entries, 0, 0) for export in first.values()
    }


def test_a_dry_run_changes_nothing(tmp_path: Path):
    ground = stopped(WORDS, tmp_path)
    before = ground.log.topics().keys()
    assert written(ground, WORDS, dry_run=True)["counts"].written == 6
    assert ground.log.topics().keys() == before
    assert ground.log.committed("app") == {}


def test_not_while_the_application_runs(tmp_path: Path):
    ground = stopped(WORDS, tmp_path)
    running = Ownership.claim(ground.storage, SystemClock(), process=this_process(), lease_ms=15_000)
    with pytest.raises(AlreadyRunningError):
        written(ground, WORDS)
    running.release()
    assert written(ground, WORDS)


def test_not_before_everything_is_delivered(tmp_path: Path):
    ground = ground_of(WORDS, tmp_path)
    with pytest.raises(Killed):
        Cluster(ground, WORDS, at_step=Killer(f"before {DELIVERY}", 3)).run()
    with pytest.raises(
        StreamsError, match=r"stopped before it had processed and delivered everything .* headrace run --once"
    ):
        written(ground, WORDS)


def test_not_of_another_topology(tmp_path: Path):
    with pytest.raises(CheckpointMismatchError, match="another topology"):
        written(stopped(WORDS, tmp_path), TAGS)


def test_nothing_without_state(tmp_path: Path):
    with pytest.raises(StreamsError, match="there is no state in"):
        written(ground_of(WORDS, tmp_path), WORDS)


def test_what_java_would_not_understand_is_refused(tmp_path: Path):
    with pytest.raises(StreamsError, match=r"SUBSCRIPTION-STATE-STORE.*cannot be exported.*foreign-key join"):
        written(stopped(REFERENCES, tmp_path), REFERENCES)


def test_a_topic_of_another_number_of_partitions_is_refused(tmp_path: Path):
    ground = stopped(WORDS, tmp_path)
    ground.log.create_topic("app-counts-changelog", 4)
    with pytest.raises(StreamsError, match="has 4 partitions, but 1 tasks"):
        written(ground, WORDS)
