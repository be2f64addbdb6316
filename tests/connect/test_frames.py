"""Spark DataFrames into a topic: batches, and streams whose batches Spark runs again."""

from __future__ import annotations

import shutil
from contextlib import closing

import pytest

from headrace.connect import write_topic
from headrace.errors import ConfigError
from headrace.log.open import open_log
from headrace.spark.session import session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark():
    return session()  # the one that all tests of this process share


def read(address, topic):
    with closing(open_log(address)) as log:
        return {
            at.partition: [row[1:4] for chunk in log.read(at, 0) for row in chunk.rows()] for at in log.extents([topic])
        }


def test_a_batch_frame_is_appended(spark, tmp_path):
    address = f"file:{tmp_path}/log"
    frame = spark.createDataFrame(
        [("21", "a", 5), ("22", "b", 6), ("21", None, 7)], "key string, value string, timestamp long"
    )
    assert write_topic(frame, "rows", address, partitions=6) == 3
    found = read(address, "rows")
    assert found[0] == [(b"21", b"a", 5), (b"21", None, 7)]  # where Kafka's clients put this key
    assert sum(map(len, found.values())) == 3
    with pytest.raises(ConfigError, match="the columns of a frame are value"):
        write_topic(frame.withColumnRenamed("value", "text"), "rows", address)
    with pytest.raises(ConfigError, match="text or bytes, not 5"):
        write_topic(frame.selectExpr("timestamp as value"), "rows", address)


def test_a_batch_of_a_stream_that_spark_runs_again_is_written_once(spark, tmp_path):
    address, lines = f"file:{tmp_path}/log", tmp_path / "lines"
    lines.mkdir()
    (lines / "a").write_text("one\ntwo\n")
    stream = spark.readStream.text(str(lines))
    with pytest.raises(ConfigError, match="needs a name"):
        write_topic(stream, "lines", address)
    for more in (None, "three\n"):
        if more is not None:
            (lines / "b").write_text(more)
        query = write_topic(stream, "lines", address, name="lines-of-spark", checkpoint=str(tmp_path / "spark"))
        query.processAllAvailable()
        query.stop()
    shutil.rmtree(tmp_path / "spark" / "commits")  # as if Spark had crashed after the log had the last batch
    query = write_topic(stream, "lines", address, name="lines-of-spark", checkpoint=str(tmp_path / "spark"))
    query.processAllAvailable()
    query.stop()
    assert [row[1] for row in read(address, "lines")[0]] == [b"one", b"two", b"three"]
