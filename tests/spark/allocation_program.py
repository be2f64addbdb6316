"""A program whose executors come and go by dynamic allocation. `test_dynamic_allocation` runs it.

python -m tests.spark.allocation_program FOLDER [start] [unlimited]

With `unlimited` Spark may start any number of executors, and `num.stream.threads` says how many slots there are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace import Application
from tests.spark.places import PATIENCE_MS, Place, wait_for
from tests.spark.test_slots import counting, slots


def executors(spark: SparkSession) -> int:
    """How many executors Spark has, the driver not counted."""
    context: Any = spark.sparkContext
    return context._jsc.sc().getExecutorIds().size()


def spark_with_one_executor(*, limited: bool) -> SparkSession:
    settings = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.ui.enabled": "false",
    }
    if limited:
        settings["spark.dynamicAllocation.maxExecutors"] = "2"
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("allocation")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def check(app: Application, place: Place, spark: SparkSession) -> None:
    def grows_to(count: int) -> None:
        wait_for(app, lambda: len(slots(app)) == count and executors(spark) == count)
        place.send("lines", "a b c")
        app.drain(PATIENCE_MS)

    grows_to(2)
    assert app.scale(1) == 1
    grows_to(1)
    assert app.scale(2) == 2
    grows_to(2)
    assert {word: found.value for word, found in app.store("counts").all()} == {"a": 4, "b": 4, "c": 4}


def main(folder: Path, *, only_start: bool, limited: bool) -> None:
    place, spark = Place(folder), spark_with_one_executor(limited=limited)
    place.create("lines", "counts", partitions=4)
    place.send("lines", "a b c")
    threads = None if limited else 2
    with place.app(counting(), spark=spark, slots_free_cores=0, num_stream_threads=threads) as app:
        if only_start:
            app.drain()
        else:
            check(app, place, spark)
    spark.stop()
    print("done")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), only_start="start" in sys.argv[2:], limited="unlimited" not in sys.argv[2:])
