"""A program that cuts the network of its own slots. `test_partitions` runs it in a network namespace.

python -m tests.faults.partition_program slots|driver|start FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from headrace import Application, Consumer, StreamsError, serde
from tests.faults.networks import HERE, Hosts, address
from tests.spark.places import PATIENCE_MS, Place, Words, counting, slots, wait_for

STARTS = 10


def check_output(words: Words) -> None:
    """Every word has its count, and no change of it was written twice."""
    written: dict[str, list[int]] = {}
    with Consumer(words.place.log, key=serde.STRING, value=serde.STRING, auto_offset_reset="earliest") as consumer:
        consumer.subscribe("counts")
        while found := consumer.poll(1000):
            for record in found:
                written.setdefault(record.key, []).append(int(record.value))
    assert {word: counts[-1] for word, counts in written.items()} == words.sent
    for counts in written.values():
        assert counts == sorted(set(counts))


def await_both_hosts(app: Application) -> None:
    """Waits for a slot on each host. Spark may have started a process that was too slow for it once more."""
    while {slot.host for slot in app.report().slots} != {address(0), address(1)}:
        wait_for(app, lambda: len(slots(app)) == 2)
        one, other = app.report().slots
        if one.host == other.host:
            os.kill(other.process, signal.SIGKILL)
            wait_for(app, lambda process=other.process: process not in {slot.process for slot in app.report().slots})


def cut(hosts: Hosts, app: Application, words: Words, kind: str) -> None:
    words.send(app)
    await_both_hosts(app)
    words.send(app)
    for _ in range(2):
        before = {slot.process for slot in app.report().slots}
        if kind == "slots":
            hosts.separate()
        else:
            hosts.cut_off(1)
        took = words.send(app)
        print(f"results after {took:.1f} s, while the network is cut ({kind})")  # noqa: T201
        assert len(slots(app)) == 1, "two slots that do not reach each other must not run a batch"
        assert words.send(app) < took, "the slot that is left goes on alone"
        hosts.heal()
        await_both_hosts(app)
        print(f"healed; results after {words.send(app):.1f} s")  # noqa: T201
        assert {slot.process for slot in app.report().slots} != before
        wait_for(app, lambda: all(behind == 0 for slot in app.report().slots for behind in slot.standbys.values()))
    check_output(words)


def start_while_cut(hosts: Hosts, make_app: Callable[[], Application]) -> None:
    hosts.separate()
    for _ in range(STARTS):
        try:
            with make_app() as app:
                app.drain(PATIENCE_MS)
                assert len({slot.host for slot in app.report().slots}) == 1
        except StreamsError as error:
            print(f"the start failed: {error}")  # noqa: T201
            words = str(error).split()
            missing = {address(0), address(1)} - {word.partition(":")[0] for word in words}
            if missing or "slot.bind.address" not in words:
                raise
            return
        # The second slot came too late, or on the same host: Spark had started a process that was too slow once more.
    raise AssertionError("it has started")


def main(kind: str, folder: Path) -> None:
    folder.mkdir()
    with Hosts(2) as hosts:
        os.environ["PYSPARK_PYTHON"] = str(hosts.run_python(folder / "hosts"))
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        spark = (
            SparkSession.builder.master("local[6]")
            .config("spark.python.use.daemon", "false")  # one process for each slot, so that each can be on a host
            .config("spark.python.unix.domain.socket.enabled", "true")  # which the JVM is not on
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        place = Place(folder)
        place.create("lines", "counts", partitions=4)
        make_app = partial(
            place.app,
            counting(),
            spark=spark,
            num_stream_threads=2,
            num_standby_replicas=1,
            driver_bind_address=HERE,
            driver_advertised_address=HERE,
            slot_bind_address="0.0.0.0",  # noqa: S104
        )
        if kind == "start":
            place.send("lines", "a b c")
            start_while_cut(hosts, make_app)
        else:
            with make_app() as app:
                cut(hosts, app, Words(place), kind)
        spark.stop()
    print("done")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
