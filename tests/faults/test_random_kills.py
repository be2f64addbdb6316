"""A long run with 20 kills by chance: several partitions, ticks, and a function that is not deterministic.

Caches are off: every update of every table is in the log, once and in order.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from itertools import pairwise

import pytest

from headrace.checkpoint.steps import BATCH, DELIVERY, DELTA_WRITTEN, MARKER, MERGE, PURGE, RECEIPT, TASK_RUN
from tests.faults.deployment import Deployment, by_key
from tests.faults.kills import DRIVER, HOME, WORKERS, Kill
from tests.faults.programs import line

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KILLS, LIVES = 20, 40
IN_WORKERS = (TASK_RUN, DELTA_WRITTEN, RECEIPT)


def kills_of_a_life(chance: random.Random) -> list[Kill]:
    """A driver's end, and up to two of workers on the way there."""
    name = chance.choice([name for name in BATCH if name != MERGE] if chance.random() < 0.9 else [MERGE])
    few = name in {DELIVERY, MARKER, MERGE, PURGE}
    ends = [Kill(f"{chance.choice(['before', 'after'])} {name}", chance.randrange(1, 4 if few else 15), DRIVER)]
    for _ in range(chance.randrange(3)):
        moment = f"{chance.choice(['before', 'after'])} {chance.choice(IN_WORKERS)}"
        ends.append(Kill(moment, chance.randrange(1, 12), chance.choice([HOME, WORKERS])))
    return ends


def test_20_kills_by_chance_lose_nothing_and_repeat_nothing(deploy, jvm, chance):
    tables = ["counts", "latest", "watched"]
    config = {"batch.max.records": 3, "receipt.max.bytes": 0}
    place = deploy("MANY", config=config, master="local[2,4]", tables=tables)
    landed = 0
    for _ in range(LIVES):
        if landed >= KILLS:
            break
        kills = kills_of_a_life(chance)
        place.feed(30)
        run = place.start(*kills, environment=jvm)
        code = run.end()
        sys.stdout.write(f"{run.landed()} of {kills}\n")
        assert code in {0, -9}, run.said
        assert run.landed() or code == 0
        landed += run.landed()
    assert landed >= KILLS
    place.start(environment=jvm).ends_well()
    check(place)


def check(place: Deployment) -> None:
    """Tables, counts and log agree, and nothing was delivered twice."""
    tables = place.tables()
    rows = {name: [row for at, some in place.outputs().items() if at.topic == name for row in some] for name in OUTPUTS}
    words = Counter(word for n in range(place.fed) for word in line(n).split())
    assert dict(tables["counts"]) == words
    counts = by_key(rows["out"])
    assert {key: [int(value) for value, _ in values] for key, values in counts.items()} == {
        word: list(range(1, count + 1)) for word, count in words.items()
    }
    latest = by_key(rows["latest"])
    assert {key: values[-1][0] for key, values in latest.items()} == dict(tables["latest"])
    tagged = [value for values in latest.values() for value, _ in values]
    assert len(set(tagged)) == len(tagged) == place.fed
    assert Counter(value.rpartition(" ")[0] for value in tagged) == Counter(line(n) for n in range(place.fed))
    assert dict(tables["watched"]) == Counter(str(n % 5) for n in range(place.fed))
    told = by_key(rows["told"])
    assert told.keys() == dict(tables["watched"]).keys()
    assert all(a < b and int(x) <= int(y) for values in told.values() for (x, a), (y, b) in pairwise(values))


OUTPUTS = ("out", "latest", "told")
