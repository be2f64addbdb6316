"""Who stands by takes over from an application that is killed, again and again: its output does not show it."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from http.client import HTTPException
from urllib.request import urlopen

import pytest

from headrace.errors import StreamsError
from headrace.query import Follower
from headrace.testing import TopologyTestDriver
from tests.faults.deployment import Deployment, Run, under_load, wait_until
from tests.faults.programs import CACHE_OFF, count_words, line

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TAKEOVERS = 5
AHEAD = 60  # lines that wait, so that the killed instance is busy
PAGES = ("--master", "local[1]", "--web", "--no-token", "--port", "0")


class Watch:
    """What a follower of the checkpoint sees, beside the standbys."""

    def __init__(self, place: Deployment) -> None:
        self._follower = Follower.open(place.folder / "checkpoint")

    @property
    def epoch(self) -> int:
        return self._refreshed()[0]

    @property
    def read(self) -> int:
        """Lines that have been read."""
        return self._refreshed()[1]

    @property
    def batch(self) -> int:
        return self._refreshed()[2]

    def _refreshed(self) -> tuple[int, int, int]:
        try:
            snapshot = self._follower.refresh()
        except StreamsError:  # there is no batch yet
            return 0, 0, -1
        return snapshot.epoch, sum(snapshot.position.offsets.values()), snapshot.batch


def stands_by(place: Deployment) -> tuple[Run, str]:
    """Somebody who stands by, and where it answers."""
    run = place.command("--standby", *PAGES)
    wait_until(lambda: "stands by. Ctrl-C ends it. See http" in run.said, run)
    found = re.search(r"http://127\.0\.0\.1:\d+", run.said)
    assert found
    return run, found[0]


def batch_at(url: str) -> int:
    """The batch of which an instance answers."""
    try:
        with urlopen(f"{url}/stores/counts", timeout=30) as response:  # noqa: S310 - our own
            return json.load(response)["position"]["batch"]
    except (OSError, HTTPException):
        return -1


def test_the_output_after_five_takeovers_is_that_of_one_run(deploy):
    place = deploy("WORDS", config={"batch.max.records": 7})
    watch = Watch(place)
    running, url = place.command(*PAGES), ""
    with under_load(place, lambda: watch.read, AHEAD):
        wait_until(lambda: watch.read > 0, running)
        next_one, next_url = stands_by(place)
        for number in range(TAKEOVERS):
            known = watch.batch
            wait_until(lambda known=known, url=next_url: batch_at(url) > known, next_one)  # it follows the other one
            lag, epoch = watch.batch - batch_at(next_url), watch.epoch
            begun = time.monotonic()
            running.process.kill()
            wait_until(lambda epoch=epoch: watch.epoch > epoch, next_one)
            claimed, read = time.monotonic() - begun, watch.read
            wait_until(lambda read=read: watch.read > read, next_one)
            times = f"claimed after {claimed:.1f} s, at work after {time.monotonic() - begun:.1f} s"
            sys.stdout.write(f"take-over {number + 1}: {lag} batches behind; {times}\n")
            assert running.process.wait() == -signal.SIGKILL
            wait_until(lambda run=next_one: "has taken over after batch" in run.said, next_one)
            running, url = next_one, next_url
            if number < TAKEOVERS - 1:
                next_one, next_url = stands_by(place)
    wait_until(lambda: watch.read == place.fed, running)
    wait_until(lambda: batch_at(url) >= watch.batch, running)  # where it stood by, it answers now that it runs
    running.process.send_signal(signal.SIGTERM)
    running.ends_well()
    assert written(place) == of_one_run(place.fed)


def written(place: Deployment) -> list[tuple]:
    ((_, rows),) = place.outputs().items()
    return [(key, value, timestamp) for _, key, value, timestamp, _ in rows]


def of_one_run(lines: int) -> list[tuple]:
    """What the driver of tests writes, which takes one record at a time."""
    with TopologyTestDriver(count_words(), CACHE_OFF) as driver:
        for number in range(lines):
            driver.pipe_row("lines", b"%d" % (number % 5), line(number).encode(), 10 * number, ())
        return [(key, value, timestamp) for _, _, key, value, timestamp, _, _ in driver.queue("out")]
