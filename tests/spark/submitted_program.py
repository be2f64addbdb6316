"""A program that `spark-submit` starts: it counts words where Spark runs, and prints where that is.

spark-submit tests/spark/submitted_program.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkContext

from tests.spark.places import PATIENCE_MS, Place, counting


def main(folder: Path) -> None:
    place = Place(folder)
    place.create("lines", "counts", partitions=2)
    place.send("lines", "a b", "a")
    with place.app(counting()) as app:
        app.drain(PATIENCE_MS)
        found = {word: found.value for word, found in app.store("counts").all()}
    print("counted", found, "on", SparkContext.getOrCreate().master)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
