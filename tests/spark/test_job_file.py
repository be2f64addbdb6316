"""The file of a job: only what the driver has written is loaded."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from pyspark import cloudpickle

from headrace.errors import StreamsError
from headrace.spark.job import load_job, write_job
from tests.other_users import modes


class Burglar:
    """What a pickle can do when it is loaded."""

    def __init__(self, loot: Path) -> None:
        self.loot = loot

    def __reduce__(self):
        return os.mkdir, (str(self.loot),)


def test_a_job_is_loaded_and_only_its_owner_can_read_it(tmp_path):
    path = write_job(cloudpickle.dumps({"a": 1}), tmp_path)
    assert load_job(path) == {"a": 1}
    assert modes(tmp_path)["files"] == "0600"
    assert write_job(cloudpickle.dumps({"a": 1}), tmp_path) != path


def test_a_file_that_was_changed_is_not_unpickled(tmp_path):
    path, loot = write_job(cloudpickle.dumps({"a": 1}), tmp_path), tmp_path / "loot"
    Path(path).write_bytes(pickle.dumps(Burglar(loot)))
    with pytest.raises(StreamsError, match=f"{path} is not the file that the driver has written, and is not loaded"):
        load_job(path)
    assert not loot.exists()


def test_a_file_that_another_process_put_in_its_place_on_another_host_is_not_unpickled(tmp_path):
    """On the hosts of executors, the path of the driver leads to whatever has been put there."""
    path, loot = write_job(cloudpickle.dumps({"a": 1}), tmp_path), tmp_path / "loot"
    Path(path).unlink()
    forged = write_job(pickle.dumps(Burglar(loot)), tmp_path)
    Path(forged).rename(path)
    with pytest.raises(StreamsError, match="Look who can write there"):
        load_job(path)
    assert not loot.exists()
