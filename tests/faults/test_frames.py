"""A function of the user gets every batch as a Spark DataFrame; the driver is killed in the middle, and goes on."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from headrace.checkpoint.steps import SINK_PROGRESS
from headrace.connect.sink import TOKEN
from tests.faults.kills import Kill
from tests.faults.programs import line

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("trigger", ["real-time", pytest.param("micro-batch", marks=pytest.mark.long)])
def test_a_function_that_overwrites_by_the_batch_number_has_every_record_once(trigger, deploy, jvm, tmp_path):
    config = {"batch.max.records": 5, "processing.trigger": trigger, "num.stream.threads": 2}
    place = deploy("FRAMES", config={**config, "delivery.job.min.bytes": 1})  # slots stage the parts of every batch
    (tmp_path / "frames").mkdir()
    environment = {**jvm, "FRAMES": str(tmp_path / "frames")}
    place.start(Kill(f"after {TOKEN}", 2), environment=environment).ends_by_kill()
    place.start(Kill(f"before {SINK_PROGRESS}"), environment=environment).ends_by_kill()
    place.settings.config.pop("delivery.job.min.bytes")  # from now on the driver writes the small batches
    place.start(environment=environment).ends_well()

    batches = sorted((tmp_path / "frames").glob("batch=*"))
    rows = [
        row for batch in batches for row in pq.ParquetDataset(batch, partitioning=cast("Any", None)).read().to_pylist()
    ]
    assert sorted((row["line"], row["words"], row["key"]) for row in rows) == sorted(
        (line(n), len(line(n).split()), str(n % 5)) for n in range(place.fed)
    )
    assert sorted(int(row["at"].timestamp() * 1000) for row in rows) == [10 * n for n in range(place.fed)]
    calls = [tuple(map(int, call.split())) for call in (tmp_path / "frames" / "calls").read_text().splitlines()]
    repeated = [batch for batch, times in Counter(batch for batch, _ in calls).items() if times > 1]
    assert repeated, "no batch was written twice, so the kills have shown nothing"
    assert max(partitions for _, partitions in calls) > 1  # the executors read several files
    assert len(batches) == len({batch for batch, _ in calls}) > 3
    assert not list((place.folder / "checkpoint" / "staged").rglob("0*"))
