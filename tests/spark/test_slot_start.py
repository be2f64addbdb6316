"""How a slot starts: what it takes from its driver, and what it says when it cannot start."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import cloudpickle

from headrace import StreamsBuilder, serde
from headrace.config.settings import Config
from headrace.errors import StreamsError
from headrace.spark.job import Job
from headrace.spark.slot import CANNOT_START, DriverAddress, Slot, digest_of_job
from headrace.spark.slot_messages import CheckPeers, Hello, Message, Peer, Start, decode_for_driver, encode_message
from headrace.spark.transport import Connection, Endpoint, Frame
from headrace.topology.subtopologies import plan

SECRET = b"s" * 32
ADDRESS = DriverAddress("127.0.0.1", 0, SECRET, "127.0.0.1", encrypts=False, ports=None, job=digest_of_job(b"the job"))


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


@contextmanager
def driver_that(answers: Callable[[object], Message]) -> Iterator[Endpoint]:
    """A driver that answers the messages of a slot."""

    def answer(connection: Connection, frame: Frame) -> None:
        connection.send(encode_message(answers(decode_for_driver(frame))))

    driver = Endpoint(
        SECRET, answer, lambda connection: None,
        host="127.0.0.1", ports=None, encrypts=False, name="driver of a test",
    )  # fmt: skip
    try:
        yield driver
    finally:
        driver.close()


def test_a_job_that_was_not_announced_is_not_unpickled(tmp_path: Path):
    hostile = pickle.dumps(Touch(tmp_path / "touched"))
    with (
        driver_that(lambda message: Start(1, 10.0, hostile, [])) as driver,
        pytest.raises(StreamsError, match="not the one that the driver has announced"),
    ):
        Slot(replace(ADDRESS, port=driver.port), 0).serve()
    assert not (tmp_path / "touched").exists()
    pickle.loads(hostile)
    assert (tmp_path / "touched").exists()


def test_the_secret_is_not_shown():
    assert "ssss" not in repr(ADDRESS)


def test_a_slot_that_cannot_use_its_state_directory_says_so_after_another_slot_has_gone(tmp_path: Path):
    """Slots that start together fail together: a slot may meet the loss of the other one before its own directory."""
    (tmp_path / "state").write_text("a file")
    builder = StreamsBuilder()
    builder.stream("lines", key=serde.STRING, value=serde.STRING).group_by_key().count(store="counts")
    graph = builder.build().graph()
    state = str(tmp_path / "state")
    job = cloudpickle.dumps(
        Job("app", graph, plan(graph), Config.of({}), {0: 2}, {}, f"file:{tmp_path}/log", "checkpoint", state)
    )
    gone = Peer(1, 2, "127.0.0.1", 9)  # nothing listens on the port of `discard`
    with (
        driver_that(
            lambda message: Start(1, 10.0, job, [gone]) if isinstance(message, Hello) else CheckPeers([])
        ) as driver,
        pytest.raises(ConnectionError, match=rf"{CANNOT_START} on .*{state}/app cannot be used: .*Set state.dir"),
    ):
        Slot(replace(ADDRESS, port=driver.port, job=digest_of_job(job)), 0).serve()


def test_a_slot_listens_on_the_address_that_spark_is_given_on_its_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.3")
    said: list[object] = []
    with (
        driver_that(lambda message: said.append(message) or Start(1, 10.0, b"", [])) as driver,
        pytest.raises(StreamsError),
    ):
        Slot(replace(ADDRESS, port=driver.port, bind=""), 0).serve()
    (hello,) = said
    assert isinstance(hello, Hello)
    assert hello.host == "127.0.0.3"
