"""The folders of killed drivers are removed by the next driver."""

from __future__ import annotations

import subprocess
import sys

from headrace.spark.application_state import make_query_folder


def test_folders_of_processes_that_are_gone_are_removed_and_those_of_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f"headrace-query-{gone.pid}-abc").mkdir()
    (tmp_path / "headrace-query-of-somebody-else").mkdir()
    first, second = make_query_folder(), make_query_folder()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == sorted(
        [first.name, second.name, "headrace-query-of-somebody-else"]
    )
