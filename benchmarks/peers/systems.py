"""The systems that are measured: how each is set up and started, with which settings, and what it cannot do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.testing.broker import STREAMS, kafka_jars

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAMS = HERE / "programs"
BUILD = ROOT / "build" / "peers"

BARE, HEADRACE, KAFKA_STREAMS, QUIX, FAUST = "bare", "headrace", "kafka-streams", "quix", "faust"
KAFKA_STREAMS_10 = "kafka-streams-10"  # with commit.interval.ms=10
REPARTITIONED = "latency-"  # how the names begin of latencies with repartitions


@dataclass(frozen=True)
class System:
    """`set_up` gives the command; after it come workload, bootstrap servers, room, directory and threads."""

    name: str
    title: str
    settings: str
    set_up: Callable[[], list[str]]
    impossible: Mapping[str, str] = field(default_factory=dict)  # workloads, and why
    processes_for_threads: bool = False  # it scales by processes, each with one thread
    in_one_process: frozenset[str] = frozenset()  # but not on these workloads
    own_topics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # that it needs and does not make in time
    on_backlog: frozenset[str] = frozenset()  # workloads whose backlog must be there, visible, when it starts
    environment: Mapping[str, str] = field(default_factory=dict)
    limit: float = 180.0  # seconds for a backlog; of a slow one so much is seen after a minute
    only_latency: bool = False
    repartitions: bool = False  # it has programs for latencies with repartitions

    def is_measured_on(self, workload: str) -> bool:
        if workload.startswith(REPARTITIONED):
            return self.repartitions
        return workload == "latency" or not self.only_latency

    def commands(
        self, base: list[str], workload: str, bootstrap: str, room: str, folder: Path, threads: int
    ) -> list[list[str]]:
        processes = threads if self.processes_for_threads and workload not in self.in_one_process else 1
        each = threads // processes
        return [
            [*base, workload, bootstrap, room, str(_made(folder / str(number))), str(each)]
            for number in range(processes)
        ]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _own(program: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, str(PROGRAMS / program)]


def _in_environment(name: str, *requirements: str, program: str) -> Callable[[], list[str]]:
    """A virtual environment of its own, made once for these requirements."""

    def set_up() -> list[str]:
        folder = BUILD / name
        python, installed = folder / "bin" / "python", folder / "installed.txt"
        wanted = "\n".join(requirements)
        if not installed.is_file() or installed.read_text(encoding="utf-8") != wanted:
            _quietly([sys.executable, "-m", "venv", "--clear", str(folder)])
            _quietly([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
            installed.write_text(wanted, encoding="utf-8")
        return [str(python), str(PROGRAMS / program)]

    return set_up


def _kafka_streams() -> list[str]:
    compiler = shutil.which("javac")
    if compiler is None:
        raise RuntimeError("there is no `javac` on the PATH: apt-get install default-jdk-headless")
    java = str(Path(compiler).with_name("java"))
    path = f"{kafka_jars(java, module=STREAMS)}/*"
    folder = BUILD / "kafka-streams"
    folder.mkdir(parents=True, exist_ok=True)
    _quietly([compiler, "-cp", path, "-d", str(folder), str(PROGRAMS / "KafkaStreamsPeer.java")])
    logging = f"-Dlog4j2.configurationFile={PROGRAMS / 'log4j2.properties'}"
    return [java, "-Xmx2g", logging, "-cp", f"{folder}:{path}", "KafkaStreamsPeer"]


def _quietly(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise RuntimeError(f"`{' '.join(command[:4])} ...` failed: {' / '.join(last)}")


_PATHS = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")]))

SYSTEMS = {
    system.name: system
    for system in (
        System(
            BARE,
            "bare loop",
            "confluent-kafka in one process: `consume` of 20,000 records, dicts, `produce`; a transaction with its "
            "offsets every 100 ms. Its state is in memory and lost with it: the limit, not a peer",
            _own("run_bare.py"),
        ),
        System(
            HEADRACE,
            "Headrace",
            "Spark `local[2]`, `processing.guarantee=exactly_once_v2`, `num.stream.threads=2`, all else as it comes",
            _own("run_headrace.py"),
            environment={"PYTHONPATH": _PATHS},
            repartitions=True,
        ),
        System(
            KAFKA_STREAMS,
            "Kafka Streams",
            "4.3.1, Java, `processing.guarantee=exactly_once_v2`, `num.stream.threads=2`, all else as it comes (commit "
            "interval 100 ms, 10 MB of caches, RocksDB); JSON by Jackson; `-Xmx2g`",
            _kafka_streams,
            repartitions=True,
        ),
        System(
            KAFKA_STREAMS_10,
            "Kafka Streams, `commit.interval.ms=10`",
            "as above, but it commits every 10 ms instead of every 100. Only latencies are measured",
            _kafka_streams,
            environment={"COMMIT_INTERVAL_MS": "10"},
            only_latency=True,
            repartitions=True,
        ),
        System(
            QUIX,
            "Quix Streams",
            '3.28.1, `processing_guarantee="exactly-once"`, two processes, all else as it comes (a commit every 5 '
            "seconds, RocksDB, changelogs); for the latency a commit every 100 ms. On W3 it waits for records of open "
            "transactions: there the backlog is visible from its start, and what follows its first commit is counted",
            _in_environment(QUIX, "quixstreams==3.28.1", program="run_quix.py"),
            processes_for_threads=True,
            on_backlog=frozenset({"W3"}),  # with joins it waits for records of transactions that are still open
        ),
        System(
            FAUST,
            "Faust",
            'faust-streaming 0.15.3 with `[fast]`, `processing_guarantee="exactly_once"`, two workers (on W1 one), '
            "tables in memory with changelogs; its windows of W2 are kept by hand in a plain table",
            _in_environment(FAUST, "faust-streaming[fast]==0.15.3", program="run_faust.py"),
            impossible={"W3": "it has no joins: `Stream.join` is not implemented"},
            processes_for_threads=True,
            limit=60.0,
            own_topics={"W1": ("words",)},
            in_one_process=frozenset({"W1"}),  # two that repartition take each other's transactional ids
        ),
    )
}
