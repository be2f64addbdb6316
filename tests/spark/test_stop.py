"""The end of an application's processes: by a signal, which stops it without noise, and by kills, which leave none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from headrace import serde
from headrace.log import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.query import Follower
from tests.cli.commands import records
from tests.faults.deployment import members
from tests.machine import Slowdown

pytestmark = pytest.mark.spark

PROGRAM = """
import itertools
import threading

from headrace import Application, Producer, StreamsBuilder, serde

builder = StreamsBuilder()
lines = builder.stream("lines", key=serde.STRING, value=serde.STRING)
words = lines.group_by(lambda key, word: word, key=serde.STRING, value=serde.STRING)
words.count(store="counts").to_stream().to("counts", value=serde.LONG)
app = Application("words", builder.build(), "file:log", checkpoint="checkpoint", state_dir="state")

def feed():
    with Producer("file:log", key=serde.STRING, value=serde.STRING) as producer:
        for number in itertools.count():
            producer.send("lines", str(number), f"word {number % 10}")
            if number % 10 == 9:
                producer.flush()
                if ended.wait(0.02):
                    return

ended = threading.Event()
feeding = threading.Thread(target=feed)
feeding.start()
try:
    app.run()
finally:
    ended.set()
    feeding.join()
"""


HANGING = """
import time

from headrace import Application, StreamsBuilder, serde

def hang(word):
    open("hangs", "w").close()
    time.sleep(3600)

builder = StreamsBuilder()
builder.stream("lines", key=serde.STRING, value=serde.STRING).map_values(hang).to("counts", value=serde.STRING)
Application("hanging", builder.build(), "file:log", checkpoint="checkpoint", state_dir="state").run()
"""
PATIENCE = 120  # seconds
GONE = 10.0  # seconds until all processes of an application have ended
MICRO_BATCH = {"HEADRACE_PROCESSING_TRIGGER": "micro-batch"}


def start(folder: Path, program: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(program)
    with closing(open_log(f"file:{folder}/log")) as log:
        log.create_topic("lines", 2)
        log.create_topic("counts", 2)
        log.append([(TopicPartition("lines", 0), Records([b"a"], [b"word 0"], [1]))])
    return subprocess.Popen(
        [sys.executable, "program.py"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **(environment or {})}, start_new_session=True,
    )  # fmt: skip


def wait_until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)


def interrupt_group(session: int) -> None:
    """As a terminal does at Ctrl-C."""
    os.killpg(session, signal.SIGINT)


def terminate_group(session: int) -> None:
    """As `timeout` does."""
    os.killpg(session, signal.SIGTERM)


def terminate_all(session: int) -> None:
    """As systemd does: not only the group of the driver, but also Spark's JVM, its daemon and the slots."""
    for process in members(session):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)


def find_jvm(session: int) -> int | None:
    for process in members(session):
        with suppress(OSError):  # it has just ended
            if Path(f"/proc/{process}/comm").read_text() == "java\n":
                return process
    return None


@pytest.mark.parametrize(
    "send, environment",
    [
        pytest.param(interrupt_group, {}, id="Ctrl-C"),
        pytest.param(terminate_group, {}, id="timeout"),
        pytest.param(terminate_all, {}, id="systemd"),
        pytest.param(terminate_group, MICRO_BATCH, id="timeout, micro-batch"),
    ],
)
def test_a_signal_stops_an_application_in_the_middle_of_batches_without_noise(
    send: Callable[[int], None], environment: dict[str, str], tmp_path: Path
):
    process = start(tmp_path, PROGRAM, environment)
    try:
        records(f"file:{tmp_path}/log", "counts", 30)  # several batches
        send(process.pid)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "")
    check_last_batch(tmp_path)


def check_last_batch(folder: Path) -> None:
    """Every record that was read, the last batch included, is counted in the log, and no more."""
    read = Follower.open(folder / "checkpoint").refresh().position.offsets
    with closing(open_log(f"file:{folder}/log")) as log:
        words = [row[2] for at, end in read.items() for chunk in log.read(at, 0, end) for row in chunk.rows()]
        counts = {
            row[1]: serde.LONG.decode(row[2] or b"")
            for at in sorted(log.extents(["counts"]))
            for chunk in log.read(at, 0)
            for row in chunk.rows()
        }
    assert len(words) >= 30
    assert counts == Counter(words)


def test_a_signal_while_spark_starts_ends_the_application_without_a_traceback(tmp_path: Path):
    process = start(tmp_path, HANGING)
    try:
        wait_until(lambda: find_jvm(process.pid) is not None)
        terminate_all(process.pid)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in err


# ----------------------------------------------------------------------------------------------------- sudden ends
def kill_driver(process: subprocess.Popen[str]) -> None:
    process.kill()


def kill_jvm(process: subprocess.Popen[str]) -> None:
    jvm = find_jvm(process.pid)
    assert jvm is not None
    os.kill(jvm, signal.SIGKILL)


def interrupt_again(process: subprocess.Popen[str]) -> None:
    """As an impatient user does."""
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill, code, says, environment",
    [
        (kill_driver, -signal.SIGKILL, "", {}),
        (kill_driver, -signal.SIGKILL, "", MICRO_BATCH),
        (kill_jvm, 1, "has ended: it was killed by SIGKILL. Start the application again", {}),
        (interrupt_again, 130, "Interrupted again: ended at once. The next start continues with the last batch.\n", {}),
    ],
)
def test_nothing_of_an_application_outlives_its_driver(
    kill: Callable[[subprocess.Popen[str]], None], code: int, says: str, environment: dict[str, str], tmp_path: Path
):
    """Not even a function that hangs."""
    process = start(tmp_path, HANGING, environment)
    try:
        wait_until((tmp_path / "hangs").exists)
        kill(process)
        assert process.wait(PATIENCE) == code
        ended, slowdown = time.monotonic(), Slowdown()
        wait_until(lambda: not list(members(process.pid)))
        took = time.monotonic() - ended
        assert took < GONE * slowdown.factor()
        assert says in process.communicate()[1]
    finally:
        process.kill()
        for left in members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
