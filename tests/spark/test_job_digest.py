"""A slot unpickles the job that its driver has announced through Spark, and no other."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import StreamsError
from headrace.spark.slot import DriverAddress, Slot, digest_of_job
from headrace.spark.slot_messages import Start, encode_message
from headrace.spark.transport import Connection, Endpoint, Frame

SECRET = b"s" * 32
ADDRESS = DriverAddress("127.0.0.1", 0, SECRET, "127.0.0.1", encrypts=False, ports=None, job=digest_of_job(b"the job"))


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


def test_a_job_that_was_not_announced_is_not_unpickled(tmp_path: Path):
    hostile = pickle.dumps(Touch(tmp_path / "touched"))

    def answer(connection: Connection, frame: Frame) -> None:
        connection.send(encode_message(Start(1, 10.0, hostile, [])))

    driver = Endpoint(
        SECRET, answer, lambda connection: None,
        host="127.0.0.1", ports=None, encrypts=False, name="driver of a test",
    )  # fmt: skip
    try:
        with pytest.raises(StreamsError, match="not the one that the driver has announced"):
            Slot(replace(ADDRESS, port=driver.port), 0).serve()
    finally:
        driver.close()
    assert not (tmp_path / "touched").exists()
    pickle.loads(hostile)
    assert (tmp_path / "touched").exists()


def test_the_secret_is_not_shown():
    assert "ssss" not in repr(ADDRESS)
