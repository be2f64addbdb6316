"""Functions of the user that hang, end their process, or give and print far too much: named, then by policy."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from headrace import StreamsBuilder, serde
from headrace.errors import ProcessingError
from headrace.log import open_log
from headrace.model.ids import TopicPartition
from headrace.spark.session import without_idle_workers
from headrace.topology.builder import Topology
from tests.spark.places import PATIENCE_MS, Place

LIMIT = 1500  # ms: a loaded machine takes its time for the calls that do not hang
NEVER = 3_600_000  # ms
KILLED = "ProcessEndedError: the process that ran it has ended 3 times:"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


class Hoard(list[bytearray]):
    """Memory of a process that may get 64 MB more than it has. The limit is lifted when the memory is freed.

    So the error is handled while there is no memory: its traceback holds the frame that has the hoard.
    """

    def __init__(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), self._before[1]))

    def __del__(self) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self._before)


def behave(how: str) -> str:
    """Does what a record says."""
    match how:
        case "hang":
            time.sleep(3600)
        case "hang on":
            while True:
                with suppress(TimeoutError):
                    time.sleep(3600)
        case "exit":
            sys.exit(3)
        case "end":
            os._exit(1)
        case "be killed":  # as by the kernel, when memory is short
            os.kill(os.getpid(), signal.SIGKILL)
        case "allocate":
            return str(len(bytearray(1 << 60)))
        case "exhaust":
            hoard = Hoard()
            while True:
                hoard.append(bytearray(1 << 20))
    return how


def behaving() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("in", key=serde.STRING, value=serde.STRING)
    words.map_values(behave, name="behave").to("out", value=serde.STRING)
    return builder.build()


@pytest.mark.spark
@pytest.mark.parametrize(
    "how, says",
    [
        (
            "hang",
            rf"TimeoutError: it took longer than {LIMIT} ms \(max.record.processing.ms\), and was in behave \(.*:\d",
        ),
        ("hang on", rf"ProcessEndedError: it took longer than {LIMIT} ms .*, and was in behave \(.*:\d"),
        ("exit", r"it called sys\.exit\(3\)"),
        ("end", rf"{KILLED} a function called os\._exit"),
        ("be killed", rf"{KILLED} .* or the system killed it, perhaps for lack of memory"),
        ("allocate", "MemoryError"),
        ("exhaust", "MemoryError"),
    ],
)
def test_a_function_that_hangs_or_ends_its_process_is_named_with_its_record(place: Place, how: str, says: str):
    place.create("in", "out")
    place.send("in", "good", how, "better")
    limit = LIMIT if how.startswith("hang") else NEVER
    with (
        pytest.raises(ProcessingError, match=rf"behave failed on in/0 at offset 1: .*{says}"),
        place.app(behaving(), max_record_processing_ms=limit) as app,
    ):
        app.drain(PATIENCE_MS)
    assert place.read("out") == []


@pytest.mark.spark
@pytest.mark.slow
def test_records_that_hang_or_end_their_process_are_left_out_where_the_policy_says_so(place: Place):
    place.create("in", "out")
    place.send(
        "in", "one", "hang", "two", "end", "exit", "three", "be killed", "allocate", "exhaust", "hang on", "four"
    )
    settings = {"max_record_processing_ms": LIMIT, "processing_exception_handler": "continue"}
    with place.app(behaving(), **settings) as app:
        app.drain(PATIENCE_MS)
        place.send("in", "five")
        app.drain(PATIENCE_MS)
        assert app.metrics()["dropped-records-total"] == 7
    assert place.read("out") == ["one", "two", "three", "four", "five"]


@pytest.mark.spark
@pytest.mark.slow
def test_records_that_hang_end_their_process_or_exhaust_its_memory_become_dead_letters(place: Place):
    bad = ["hang", "end", "exhaust", "hang on"]
    place.create("in", "out", "dead")
    place.send("in", "one", *bad, "two")
    settings = {"processing_exception_handler": "dead_letter", "errors_dead_letter_queue_topic_name": "dead"}
    with place.app(behaving(), max_record_processing_ms=LIMIT, **settings) as app:
        app.drain(PATIENCE_MS)
    assert place.read("out") == ["one", "two"]
    with closing(open_log(place.log)) as log:
        letters = [row for chunk in log.read(TopicPartition("dead", 0), 0) for row in chunk.rows()]
    assert [(letter[1], letter[2]) for letter in letters] == [(how.encode(), how.encode()) for how in bad]
    headers = [{name.rpartition(".")[2]: (value or b"").decode() for name, value in letter[4]} for letter in letters]
    assert [(one["topic"], one["partition"], one["offset"]) for one in headers] == [
        ("in", "0", str(offset)) for offset in range(1, 5)
    ]
    kinds = ["TimeoutError", "ProcessEndedError", "MemoryError", "ProcessEndedError"]
    assert [one["exception"].rpartition(".")[2] for one in headers] == kinds


@pytest.mark.spark
@pytest.mark.slow
def test_a_million_results_and_endless_lines_are_taken(place: Place):
    def shout(word: str) -> list[str]:
        for _ in range(64):
            sys.stdout.write(" " * (1 << 20))  # one line
        return [word] * 1_000_000

    builder = StreamsBuilder()
    builder.stream("in", key=serde.STRING, value=serde.STRING).flat_map_values(shout).to("out", value=serde.STRING)
    place.create("in", "out")
    place.send("in", "word")
    place.app(builder.build()).run_available()
    with closing(open_log(place.log)) as log:
        assert log.extents(["out"])[TopicPartition("out", 0)].end == 1_000_000


def test_lines_without_end_do_not_fill_the_memory_of_the_driver():
    class Endless:
        """A gigabyte without a line break, or of lines that look like those of a traceback."""

        def __init__(self, begin: bytes) -> None:
            self.left, self.begin = 1 << 30, begin

        def readline(self, size: int) -> bytes:
            begin, self.begin = self.begin, b""
            self.left -= size
            return begin or (b" " * size if self.left > 0 else b"")

    for begin in (b" ", b"Traceback (most recent call last):\n"):
        assert max(map(len, without_idle_workers(Endless(begin)))) < 1 << 22
