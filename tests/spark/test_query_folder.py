"""The folders of killed drivers are removed by the next driver of the same user."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.directories import temporary_directory
from headrace.errors import UnsafePathError
from headrace.spark.application_state import make_query_folder
from tests.other_users import modes

pytestmark = pytest.mark.slow


def test_folders_of_processes_that_are_gone_are_removed_and_those_of_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    own = temporary_directory()
    (own / f"query-{gone.pid}-abc").mkdir()
    (own / f"spark-{gone.pid}-abc").mkdir()
    (own / "query-of-somebody-else").mkdir()
    (tmp_path / f"headrace-query-{gone.pid}-abc").mkdir()  # in a directory that all users share, it may be of anybody
    first, second = make_query_folder(), make_query_folder()
    assert sorted(folder.name for folder in own.iterdir()) == sorted(
        [first.name, second.name, "query-of-somebody-else"]
    )
    assert (tmp_path / f"headrace-query-{gone.pid}-abc").exists()


def test_the_folder_of_sockets_is_removed_when_its_process_ends_and_not_when_a_fork_of_it_does(tmp_path):
    program = """
import os, sys
from headrace.spark.application_state import make_socket_folder
folder = make_socket_folder()
child = os.fork()
if child:
    os.waitpid(child, 0)
    print(folder, folder.exists())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, check=True
    )
    folder, remained = done.stdout.decode().split()
    assert folder.startswith(f"{tmp_path}/headrace-{os.geteuid()}/spark-")
    assert remained == "True"
    assert list((tmp_path / f"headrace-{os.geteuid()}").iterdir()) == []


def test_only_its_user_can_look_into_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = make_query_folder()
    assert folder.parent == tmp_path / f"headrace-{os.geteuid()}"
    assert modes(folder.parent)["directories"] == "0700"
    folder.parent.chmod(0o755)
    with pytest.raises(UnsafePathError, match="set TMPDIR to a directory of your own"):
        make_query_folder()
