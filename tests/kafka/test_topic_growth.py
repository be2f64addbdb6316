"""A topic of Kafka gets more partitions while an application with state reads it."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from headrace.testing import KafkaBroker
from tests.spark.places import Place
from tests.spark.test_topic_growth import NumberedRecords, append_all, grow_while_records_flow

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_a_topic_grows_while_records_flow(guarded: KafkaBroker, tmp_path: Path):
    place = Place(tmp_path, guarded.address, f"growth-{uuid4().hex[:8]}")
    source, out = f"{place.name}-in", f"{place.name}-out"
    place.create(source, partitions=4)
    place.create(out)
    with place.app(append_all(source, out)) as app:
        grow_while_records_flow(app, place.log, NumberedRecords(place.log, source, 4), 6)
