"""What an application on Spark cannot work with: one clear sentence each, and nothing is harmed."""

from __future__ import annotations

import os
import re
import resource
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from headrace.app import Application
from headrace.checkpoint.storage import open_storage
from headrace.errors import CheckpointMismatchError, LogUnavailableError, StorageError, StreamsError
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from tests.checkpoint.cluster import Ground as InProcess
from tests.checkpoint.cluster import outputs, run_to_end
from tests.checkpoint.programs import WORDS
from tests.faults.deployment import Deployment
from tests.faults.programs import count_words
from tests.log.harness import chunk_files, flip, seeded

on_spark = pytest.mark.spark


def refused(place: Deployment, kind: type[StreamsError], says: str, **changes: str) -> None:
    with pytest.raises(kind, match=says):
        place.run(**changes)


@on_spark
@pytest.mark.slow
def test_checkpoints_that_cannot_be_used_are_refused(deploy: Callable[..., Deployment]):
    place = deploy("WORDS")
    file = place.folder / "file"
    file.write_text("")
    refused(place, StorageError, "/proc/headrace cannot be opened", checkpoint="/proc/headrace")
    refused(place, StorageError, "cannot be opened: a file is in the way", checkpoint=str(file))
    place.run()
    place.check_outputs()
    before = place.outputs(), place.stores()
    other = Application("other", count_words(), f"file:{place.folder}/log", checkpoint=str(place.folder / "checkpoint"))
    with pytest.raises(CheckpointMismatchError, match="is the checkpoint of 'app', not of 'other'"):
        other.start()
    refused(
        place,
        CheckpointMismatchError,
        r"another topology of 'app': store windows had windows of 50 ms and now has windows of 70 ms",
        program="OTHER",
    )
    place.run()  # nothing was harmed
    assert (place.outputs(), place.stores()) == before


@on_spark
@pytest.mark.slow
def test_logs_that_cannot_be_used_are_refused(deploy: Callable[..., Deployment]):
    place = deploy("WORDS")
    place.run()
    place.check_outputs()
    before = place.outputs()
    with closing(place.log()) as log:
        log.alter_config("lines", {"max.message.bytes": 20_000_000})
        noise = seeded(7).randbytes(5 << 20).hex().encode()  # so much that it is a file
        log.append([(TopicPartition("lines", 0), Records([b"k"], [noise], [700]))])
    (file,) = chunk_files(place.folder / "log")
    flip(file, 4000)
    refused(place, StreamsError, rf"topic 'lines', partition 0, offsets .*{re.escape(file.name)}")
    assert place.outputs() == before
    sqlite3.connect(place.folder / "log" / "log.db").execute("PRAGMA user_version = 9").connection.close()
    refused(place, LogUnavailableError, "has format version 9, and this Headrace reads version")


# ------------------------------------------------------------------------------------------------------- full disks
@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 512 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.getuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", place], check=False).returncode
    ):
        pytest.skip("only root can make a small disk")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@on_spark
@pytest.mark.slow
def test_a_full_disk_stops_the_application_and_room_lets_it_go_on(deploy: Callable[..., Deployment], small_disk: Path):
    place = deploy("WORDS", config={"batch.max.records": 5}, checkpoint=str(small_disk / "checkpoint"))
    whole = deploy("WORDS", name="whole")
    whole.run()
    (small_disk / "filler").write_bytes(bytes(480 << 10))
    refused(place, StorageError, r"disk/checkpoint cannot take .*: the disk is full .*Make room")
    (small_disk / "filler").unlink()
    place.run()
    place.check_outputs()
    assert (place.outputs(), place.stores()) == (whole.outputs(), whole.stores())


@contextmanager
def no_large_files() -> Iterator[None]:
    """No file can get larger than 300 bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_does_not_fit_stops_the_batch(tmp_path: Path):
    ground = InProcess(log=WORDS.log(), storage=open_storage(tmp_path / "checkpoint"))
    with (
        no_large_files(),
        pytest.raises(StorageError, match=r"cannot take manifests/\d+: the disk is full .*Make room"),
    ):
        run_to_end(ground, WORDS)
    assert outputs(ground.log) == {("out", 0): []}
    run_to_end(ground, WORDS).close()
    assert [row[1:4] for row in outputs(ground.log)["out", 0]] == WORDS.expected()
