"""Starts an application in contexts that it cannot run in, and prints why. `test_rejected_contexts` runs it.

python -m tests.spark.rejected_context_program FOLDER SETTING...
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.errors import ConfigError
from tests.spark.places import Place, counting


def main(folder: Path, names: list[str]) -> None:
    place = Place(folder)
    place.create("lines", "counts")
    for name in names:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        for other in names:  # else the JVM keeps the value of the context before
            builder = builder.config(other, str(other == name).lower())
        spark = builder.getOrCreate()
        try:
            place.app(counting(), spark=spark).start()
        except ConfigError as error:
            print(error)  # noqa: T201
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
