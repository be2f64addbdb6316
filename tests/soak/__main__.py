"""A soak: `python -m tests.soak`, which `make test-soak` runs. Words are counted at a steady rate on a Kafka broker.

    python -m tests.soak [--seconds 600] [--rate 5000] [--chart docs/images/soak.svg]

After the warm-up memory, checkpoint and latency must be level: the median of the last third of the time is compared
with that of the first third. Every word that was sent must be counted once. The chart is written in any case.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka

from headrace import Admin
from headrace.testing import KafkaBroker
from tests.soak.application import FOLDER, IN, LOG, OUT, PARTITIONS
from tests.soak.chart import Panel, draw_chart
from tests.soak.levels import Sample, judge
from tests.web.servers import ask

kafka: Any = confluent_kafka
ROOT = Path(__file__).parents[2]
WORDS = 10_000
WARM_UP = 120.0  # seconds, or a third of a shorter run
START = 120.0  # seconds until the application must have written something
DRAIN = 60.0  # seconds until everything must be counted
URL = re.compile(r"http://127\.0\.0\.1:\d+")


# ----------------------------------------------------------------------------------------------- words and their counts
class Feeder:
    """Sends words at a steady rate, in a thread."""

    def __init__(self, servers: str, rate: int) -> None:
        self._producer = kafka.Producer({"bootstrap.servers": servers, "linger.ms": 2})
        self._rate, self.sent, self._over = rate, 0, threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        chance, began = random.Random(7), time.monotonic()  # noqa: S311
        while not self._over.wait(0.002):
            due = int((time.monotonic() - began) * self._rate)
            for _ in range(due - self.sent):
                word = b"word%d" % chance.randrange(WORDS)
                self._producer.produce(IN, word, word, timestamp=int(time.time() * 1000))
            self.sent = max(due, self.sent)
            self._producer.poll(0)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._producer.flush()


class CountReader:
    """Reads committed counts, in a thread: the last one of every word, and how old they are."""

    def __init__(self, servers: str) -> None:
        self._consumer = kafka.Consumer({
            "bootstrap.servers": servers, "group.id": "soak", "isolation.level": "read_committed",
            "enable.auto.commit": False, "fetch.wait.max.ms": 5,
        })  # fmt: skip
        self._consumer.assign([kafka.TopicPartition(OUT, part, 0) for part in range(PARTITIONS)])
        self._counts: dict[bytes, int] = {}
        self._ages: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(5000, 0.01):
                if message.error() is None:
                    self._counts[message.key()] = int.from_bytes(message.value(), "big")
                    self._ages.append(int(time.time() * 1000) - message.timestamp()[1])

    @property
    def counted(self) -> int:
        return sum(list(self._counts.values()))

    def take_ages(self) -> list[int]:
        """How old the counts were, in ms since the timestamp of their word, that came since the last call; sorted."""
        ages, self._ages = self._ages, []
        return sorted(ages)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()


# ------------------------------------------------------------------------------------------------------ the application
class ApplicationProcess:
    """`headrace run` with its web server, in a session of its own."""

    def __init__(self, folder: Path, log: str) -> None:
        self.folder, self._output = folder, folder / "output"
        run = ["-m", "headrace", "run", "tests.soak.application:app", "--web", "--no-token", "--port", "0"]
        environment = {FOLDER: str(folder), LOG: log, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *run], cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def check(self) -> None:
        if self.process.poll() is not None:
            raise SystemExit(
                f"the application has ended with {self.process.poll()}:\n{self._output.read_text()[-3000:]}"
            )

    def slots(self) -> list[int]:
        """The processes of its slots."""
        url = URL.search(self._output.read_text())
        answer = None if url is None else ask(url[0], "/api/durability")
        return [slot["process"] for slot in answer.json["slots"]] if answer is not None and answer.status == 200 else []

    def jvm(self) -> int:
        return next(process for process in self.members() if _name(process) == "java")

    def members(self) -> list[int]:
        """The processes of its session."""
        found: list[int] = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[3]) == self.process.pid:
                    found.append(int(stat.parent.name))
        return found

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def kill(self) -> None:
        for process in self.members():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def memory_of(process: int) -> float:
    """The memory of a process in MB, its share of what it shares with others included; 0 if it has ended."""
    try:
        rolled = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return int(rolled.partition("\nPss:")[2].split()[0]) / 1024


def size_of(folder: Path) -> float:
    """The files of a folder in MB."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # it was deleted meanwhile
            total += file.stat().st_size
    return total / 2**20


# ------------------------------------------------------------------------------------------------------------- the soak
def run_soak(folder: Path, seconds: float, rate: int) -> list[Sample]:
    with KafkaBroker(folder / "broker") as broker:
        with Admin(broker.address) as admin:
            for topic in (IN, OUT):
                admin.create_topic(topic, partitions=PARTITIONS)
        app = ApplicationProcess(folder, broker.address)
        try:
            reader, feeder = CountReader(broker.bootstrap), Feeder(broker.bootstrap, rate)
            _await(lambda: reader.counted > 0 and len(app.slots()) == 2, START, app, "no word was counted")
            samples = _sample(app, reader, seconds)
            feeder.stop()
            _await(lambda: reader.counted >= feeder.sent, DRAIN, app, "words are missing")
            app.stop()
            if reader.counted != feeder.sent:
                raise SystemExit(f"{reader.counted:,} words were counted, and {feeder.sent:,} sent")
            reader.stop()
        finally:
            app.kill()
    print(f"{feeder.sent:,} words in {seconds:,.0f} s, each counted once")  # noqa: T201
    return samples


def _await(reached: Any, patience: float, app: ApplicationProcess, otherwise: str) -> None:
    end = time.monotonic() + patience
    while not reached():
        app.check()
        if time.monotonic() > end:
            raise SystemExit(f"{otherwise} within {patience:g} seconds")
        time.sleep(0.2)


def _sample(app: ApplicationProcess, reader: CountReader, seconds: float) -> list[Sample]:
    samples: list[Sample] = []
    began = time.monotonic()
    reader.take_ages()
    jvm = app.jvm()
    while (now := time.monotonic()) < began + seconds:
        time.sleep(max(0.0, began + len(samples) + 1 - now))
        app.check()
        ages = reader.take_ages()
        p50, p99 = (ages[int(share * len(ages))] if ages else None for share in (0.5, 0.99))
        slots = sum(map(memory_of, app.slots()))
        checkpoint = size_of(app.folder / "checkpoint")
        driver = memory_of(app.process.pid)
        samples.append(Sample(time.monotonic() - began, driver, memory_of(jvm), slots, checkpoint, p50, p99))
    return samples


def draw(samples: Sequence[Sample], warm_up: float, rate: int) -> str:
    def line(name: str) -> list[float | None]:
        return [getattr(sample, name) for sample in samples]

    panels = [
        Panel("Memory", "MB", {"driver": line("driver"), "its JVM": line("jvm"), "slots": line("slots")}),
        Panel("Checkpoint", "MB", {"files": line("checkpoint")}),
        Panel("Latency from log to log", "ms", {"p50": line("p50"), "p99": line("p99")}),
    ]
    title = f"{rate:,} records a second, counted by word, two slots, Kafka; shaded: warm-up"
    return draw_chart(title, [sample.time for sample in samples], warm_up, panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--chart", type=Path, default=ROOT / "docs" / "images" / "soak.svg")
    options = parser.parse_args()
    # Broker and application are in sessions of their own, and have to be ended in any case.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    warm_up = min(WARM_UP, options.seconds / 3)
    with tempfile.TemporaryDirectory(prefix="headrace-soak-", ignore_cleanup_errors=True) as folder:
        samples = run_soak(Path(folder), options.seconds, options.rate)
    options.chart.parent.mkdir(parents=True, exist_ok=True)
    options.chart.write_text(draw(samples, warm_up, options.rate), encoding="utf-8")
    told = judge(samples, warm_up)
    print("\n".join([*told, f"chart: {options.chart}"]))  # noqa: T201
    if any(line.startswith("NOT") for line in told):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
