"""`headrace prepare` writes archives of the classes of Spark and of Kafka's broker, which later starts use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import UnsafePathError
from headrace.spark.java import spark_archive
from headrace.testing.broker import KafkaBroker, broker_archive, find_java, kafka_jars

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import sys
from headrace.spark.java import spark_archive
from headrace.spark.session import start_context
options = [*spark_archive().options(), f"-Xlog:class+load=info:file={sys.argv[1]}"]
start_context("local[1]", java_options=" ".join(options)).result()
"""


@pytest.mark.kafka
def test_spark_and_a_broker_start_with_the_classes_of_the_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    java = find_java("the test")
    jars = kafka_jars(java)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "headrace").mkdir()
    (tmp_path / "headrace" / jars.name).symlink_to(jars)  # they are not fetched again
    command = [sys.executable, "-m", "headrace", "prepare", "--kafka"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    archives = [Path(line) for line in told.stdout.split()]
    of_broker = broker_archive(java, kafka_jars(java))
    assert archives == [spark_archive().path, of_broker.path]
    assert [archive.stat().st_mode & 0o777 for archive in archives] == [0o600, 0o600]
    assert archives[0].parent.stat().st_mode & 0o777 == 0o700
    assert set(archives) == set(archives[0].parent.iterdir())
    loaded = tmp_path / "loaded"
    subprocess.run([sys.executable, "-c", PROGRAM, str(loaded)], check=True)
    assert_most_are_shared(loaded, "org.apache.spark.", "org.apache.spark.SparkContext")
    loaded = tmp_path / "loaded-by-broker"
    with KafkaBroker(java_options=[*of_broker.options(), f"-Xlog:class+load=info:file={loaded}"]):
        assert_most_are_shared(loaded, "org.apache.kafka.", "org.apache.kafka.common.utils.Time")


def assert_most_are_shared(loaded: Path, package: str, example: str) -> None:
    lines = [line for line in loaded.read_text().splitlines() if f" {package}" in line]
    assert any(f"{example} source: shared objects file" in line for line in lines)
    from_jars = [line for line in lines if ".jar" in line.rpartition("source: ")[2]]
    assert len(from_jars) < 0.1 * len(lines)


def test_an_archive_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert spark_archive().options() == []
    archive = spark_archive().path
    archive.parent.mkdir(parents=True)
    archive.touch(0o600)
    assert f"-XX:SharedArchiveFile={archive}" in spark_archive().options()
    archive.chmod(0o666)
    with pytest.raises(UnsafePathError, match="every user"):
        spark_archive().options()
