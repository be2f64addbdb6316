"""Two instances of an application on Spark: one that hangs, is followed, and wakes up again can do no harm."""

from __future__ import annotations

import os
import signal

import pytest

from headrace.checkpoint.steps import MANIFEST
from tests.faults.kills import HANG, Kill

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SMALL = {"batch.max.records": 5}


def test_one_that_hangs_beyond_its_lease_cannot_commit_when_it_wakes_up(deploy, jvm):
    whole = deploy("WORDS", name="whole")
    whole.start(environment=jvm).ends_well()
    place = deploy("WORDS", config=SMALL, patient=True)
    # Before its first batch: a later one may be delivered just then, and the log would wait for the sleeper.
    zombie = place.start(Kill(f"before {MANIFEST}", 1, HANG))
    _, status = os.waitpid(zombie.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    place.start(environment=jvm).ends_well()
    os.kill(zombie.process.pid, signal.SIGCONT)
    assert zombie.end() == 1
    assert "another instance has taken over" in zombie.said
    place.check_outputs()
    assert (place.outputs(), place.stores()) == (whole.outputs(), whole.stores())
