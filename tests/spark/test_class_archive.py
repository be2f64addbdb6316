"""`headrace prepare` writes an archive of Spark's classes, which later starts use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import UnsafePathError
from headrace.spark.class_archive import archive_options, archive_path

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import sys
from headrace.spark.class_archive import archive_options
from headrace.spark.session import start_context
start_context("local[1]", java_options=f"{archive_options()} -Xlog:class+load=info:file={sys.argv[1]}").result()
"""


def test_spark_starts_with_the_classes_of_the_archive(tmp_path: Path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "headrace", "prepare"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    archive = Path(told.stdout.strip())
    assert archive.stat().st_mode & 0o777 == 0o600
    assert archive.parent.stat().st_mode & 0o777 == 0o700
    assert [archive] == list(archive.parent.iterdir())
    loaded = tmp_path / "loaded"
    subprocess.run([sys.executable, "-c", PROGRAM, str(loaded)], env=environment, check=True)
    lines = [line for line in loaded.read_text().splitlines() if " org.apache.spark." in line]
    assert any("org.apache.spark.SparkContext source: shared objects file" in line for line in lines)
    from_jars = [line for line in lines if ".jar" in line.rpartition("source: ")[2]]
    assert len(from_jars) < 0.1 * len(lines)


def test_an_archive_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert archive_options() == ""
    archive = archive_path()
    archive.parent.mkdir(parents=True)
    archive.touch(0o600)
    assert f"-XX:SharedArchiveFile={archive} " in archive_options()
    archive.chmod(0o666)
    with pytest.raises(UnsafePathError, match="every user"):
        archive_options()
