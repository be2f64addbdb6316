"""Applications and a Spark job that share the cores of a session of the user's own. `test_shared_session` runs it.

python -m tests.spark.shared_session_program FOLDER
"""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.places import PATIENCE_MS, Place, Words, counting, slots, wait_for


def check_free_core(spark: SparkSession, place: Place) -> None:
    """A Spark job of the user runs while an application processes records."""
    words, is_over, rounds = Words(place), threading.Event(), 0
    with place.app(counting(), spark=spark) as app:
        words.send(app)
        assert len(slots(app)) == 1

        def count() -> None:
            assert spark.range(1000).repartition(4).count() == 1000
            is_over.set()

        threading.Thread(target=count, daemon=True).start()
        while not is_over.is_set() or rounds < 3:
            words.send(app)
            rounds += 1
            assert rounds < 1000, "the job never ended"


def check_waiting(spark: SparkSession, one: Place, other: Place) -> None:
    """An application that finds no core is told so, and goes on when another one has stopped."""
    words, others = Words(one), Words(other)
    first, second = one.app(counting(), spark=spark, slots_free_cores=0), other.app(counting(), spark=spark)
    with first:
        words.send(first)
        assert len(slots(first)) == 2
        with second:
            wait_for(second, lambda: second.report().queued_slots == 1)
            assert not second.report().slots
            words.send(first)
            first.close(PATIENCE_MS)
            others.send(second)
            assert len(slots(second)) == 1
            wait_for(second, lambda: second.report().queued_slots == 0)


def check_shared(spark: SparkSession, one: Place, other: Place) -> None:
    """The second application takes the core that the first one left, and a slot more when the first one has stopped."""
    first, second = one.app(counting(), spark=spark), other.app(counting(), spark=spark, slots_free_cores=0)
    words, others = Words(one), Words(other)
    with first:
        words.send(first)
        with second:
            others.send(second)
            words.send(first)
            assert (len(slots(first)), len(slots(second))) == (1, 1)
            first.close(PATIENCE_MS)
            wait_for(second, lambda: len(slots(second)) == 2)
            others.send(second)


def main(folder: Path) -> None:
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
    logging.getLogger("headrace.spark").setLevel(logging.INFO)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    places = [Place(folder / f"place-{n}", name=f"app-{n}") for n in range(5)]
    for place in places:
        place.create("lines", "counts", partitions=2)
    check_free_core(spark, places[0])
    check_waiting(spark, places[1], places[2])
    check_shared(spark, places[3], places[4])
    spark.stop()
    print("done")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
