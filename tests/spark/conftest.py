"""A place with the topics of the word count."""

from pathlib import Path

import pytest

from tests.spark.places import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    found.create("lines", "counts", partitions=4)
    return found
