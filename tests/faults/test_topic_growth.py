"""A topic with state behind it gets more partitions, and drivers and slots are killed while the state is divided."""

from __future__ import annotations

import pytest

from headrace import Admin
from headrace.checkpoint.steps import MANIFEST, RESCALE, TAKEOVER, TASK_RUN
from tests.faults.kills import WORKERS, Kill
from tests.spark.test_topic_growth import NumberedRecords

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_order_and_totals_of_every_key_are_exact(deploy, jvm):
    place = deploy("GROWING", config={"batch.max.records": 5}, tables=["all"])
    log = f"file:{place.folder}/log"
    records = NumberedRecords(log, "lines", 4)
    records.send(120)
    place.start(environment=jvm).ends_well()
    kills = {6: (f"after {RESCALE}", f"after {TAKEOVER}"), 7: (f"before {TAKEOVER}", f"after {MANIFEST}")}
    for partitions, moments in kills.items():
        with Admin(log) as admin:
            admin.add_partitions("lines", partitions)
        records.send(60)  # with the old number
        for moment in moments:
            place.start(Kill(moment, 2 if RESCALE in moment else 1), environment=jvm).ends_by_kill()
        records.partitions = partitions
        records.send(60)
    place.start(Kill(f"before {TASK_RUN}", 9, WORKERS), environment=jvm).ends_well()
    assert dict(place.tables()["all"]) == records.expected()
