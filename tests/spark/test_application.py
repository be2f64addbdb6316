"""A topology on Spark with the embedded log: what comes out, and what a restart leaves as it is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from headrace import StreamsBuilder, Topology, serde
from headrace.app import Application
from headrace.checkpoint.ledger import manifest_numbers, read_ledger
from headrace.checkpoint.storage import open_storage
from headrace.clients.consumer import Consumer
from headrace.clients.producer import Producer
from headrace.directories import temporary_directory
from headrace.errors import StreamsError, UnsafePathError
from headrace.log.open import open_log
from headrace.model.ids import TaskId
from tests.other_users import PRIVATE, modes
from tests.spark.places import wait_for

pytestmark = pytest.mark.spark

LINES = ["all streams lead to kafka", "hello kafka streams", "join kafka summit"]
WORDS = {"all": 1, "hello": 1, "join": 1, "kafka": 3, "lead": 1, "streams": 2, "summit": 1, "to": 1}


def word_count() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream("lines", value=serde.STRING)
        .flat_map_values(str.split)
        .group_by(lambda key, word: word, key=serde.STRING, value=serde.STRING)
        .count(store="counts-store")
        .to_stream()
        .to("counts", key=serde.STRING, value=serde.LONG)
    )
    return builder.build()


@pytest.fixture
def address(tmp_path: Path) -> str:
    address = f"file:{tmp_path}/log"
    log = open_log(address)
    log.create_topic("lines", 2)
    log.create_topic("counts", 2)
    log.close()
    return address


def application(address: str, tmp_path: Path, topology: Topology | None = None, **options: Any) -> Application:
    folders = {"checkpoint": str(tmp_path / "checkpoint"), "state_dir": str(tmp_path / "state")}
    return Application("wordcount", topology or word_count(), address, **folders, **options)


def produce(address: str, lines: list[str]) -> None:
    with Producer(address) as producer:
        for line in lines:
            producer.send("lines", None, line, value_serde=serde.STRING)


def counted(address: str) -> list[tuple[str, int]]:
    with Consumer(address, key=serde.STRING, value=serde.LONG, auto_offset_reset="earliest") as consumer:
        consumer.subscribe("counts")
        return [(record.key, record.value) for record in consumer.poll(1000)]


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
def test_words_are_counted_over_all_partitions_and_the_store_can_be_read(address: str, tmp_path: Path, trigger: str):
    produce(address, LINES)
    with application(address, tmp_path, trigger=trigger) as app:
        app.drain(timeout=60_000)
        counts = app.store("counts-store")
        assert {key: value.value for key, value in counts.all()} == WORDS
        assert counts.get("kafka").value == 3
        assert {app.metadata_for_key("counts-store", word) for word in WORDS} == {TaskId(1, 0), TaskId(1, 1)}
    assert dict(counted(address)) == WORDS


def test_a_new_store_that_begins_empty_is_named(address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    produce(address, LINES)
    builder = StreamsBuilder()
    lines = builder.stream("lines", value=serde.STRING)
    words = lines.flat_map_values(str.split).group_by(lambda key, word: word, key=serde.STRING, value=serde.STRING)
    words.count(store="counts-store").to_stream().to("counts", key=serde.STRING, value=serde.LONG)
    application(address, tmp_path).run_available()
    assert "begins empty" not in caplog.text
    words.reduce(lambda first, second: second, store="last-words")
    application(address, tmp_path, topology=builder.build()).run_available()
    assert "begins empty, because it is new: last-words. Started with --backfill" in caplog.text


def left_by_this_process() -> list[Path]:
    """The temporary folders of queries and sockets of this process; other processes come and go meanwhile."""
    query = f"query-{os.getpid()}-"
    found = list(temporary_directory().glob(f"{query}*"))
    for job in temporary_directory().glob("slots-*/job"):
        with suppress(FileNotFoundError):
            found += [job.parent] if query in job.read_text() else []
    return found


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
def test_state_is_for_its_owner_alone_and_a_directory_that_is_open_to_all_is_refused(
    address: str, tmp_path: Path, trigger: str
):
    produce(address, LINES)
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    (state / "wordcount").mkdir(0o755)
    with (
        pytest.raises(UnsafePathError, match=f"{state} can be written by every user"),
        application(address, tmp_path, trigger=trigger),
    ):
        pass
    state.chmod(0o755)
    (state / "wordcount").rmdir()
    application(address, tmp_path, trigger=trigger).run_available()  # the one that was refused has let go of everything
    assert left_by_this_process() == []
    assert modes(state / "wordcount") == modes(tmp_path / "checkpoint") == PRIVATE
    assert dict(counted(address)) == WORDS


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
def test_a_process_that_cannot_use_its_state_directory_says_so(address: str, tmp_path: Path, trigger: str):
    """The driver finds no directory, and does not create one. The processes of the tasks fail."""
    produce(address, LINES)
    (tmp_path / "state").write_text("a file")
    with (
        pytest.raises(StreamsError, match=rf"{tmp_path}/state/wordcount cannot be used: .*Set state.dir"),
        application(address, tmp_path, trigger=trigger) as app,
    ):
        app.drain(timeout=60_000)


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
def test_the_sockets_of_sparks_workers_are_where_no_other_user_can_go(address: str, tmp_path: Path, trigger: str):
    produce(address, LINES)
    with application(address, tmp_path, trigger=trigger) as app:
        app.drain(timeout=60_000)
        sockets = list(temporary_directory().glob(f"spark-{os.getpid()}-*/.*.sock"))
        context = SparkContext._active_spark_context
        assert context is not None
        assert {str(path.parent) for path in sockets} == {context.getConf().get("spark.python.unix.domain.socket.dir")}
        assert {f"{path.parent.stat().st_mode & 0o777:o}" for path in sockets} == {"700"}


def test_spark_writes_down_no_more_than_the_first_of_many_batches(address: str, tmp_path: Path):
    with application(address, tmp_path, trigger="micro-batch") as app:
        for line in LINES:  # at least one batch each
            produce(address, [line])
            app.drain(timeout=60_000)
        assert {folder.name.partition("-")[0] for folder in left_by_this_process()} == {"query", "slots"}
        own = temporary_directory().glob(f"query-{os.getpid()}-*/spark")
        assert [len(list(folder.glob("offsets/[0-9]*"))) for folder in own] == [1]
    assert left_by_this_process() == []
    assert dict(counted(address)) == WORDS


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
def test_a_second_run_goes_on_where_the_first_one_ended_and_repeats_nothing(address: str, tmp_path: Path, trigger: str):
    produce(address, LINES)
    application(address, tmp_path, trigger=trigger).run_available()
    first = counted(address)
    application(address, tmp_path, trigger=trigger).run_available()
    assert counted(address) == first
    produce(address, ["kafka"])
    application(address, tmp_path, trigger=trigger).run_available()
    assert counted(address)[len(first) :] == [("kafka", 4)]


def test_the_deltas_of_a_task_are_merged_when_there_are_as_many_as_the_setting_allows(address: str, tmp_path: Path):
    with application(address, tmp_path, num_stream_threads=1, checkpoint_max_deltas=2) as app:
        for _ in range(12):
            produce(address, LINES)
            app.drain()
            wait_for(app, lambda: app._running().coordinator._cleaner._executor.is_idle)
    storage = open_storage(str(tmp_path / "checkpoint"))
    ledger = read_ledger(storage, manifest_numbers(storage)[-1])
    assert max(len(ledger.head(task).chain) for task in ledger.tasks) <= 4  # a merge runs beside the next batches
