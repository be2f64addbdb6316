"""One measurement of throughput: a system on a backlog, from when that appears until the last output is committed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from benchmarks.peers.outcome import Outcome
from benchmarks.peers.processes import Processes
from benchmarks.peers.room import Place, Room
from benchmarks.peers.running import LOOK, ProblemError, Running, Sample
from benchmarks.peers.systems import BUILD, System
from benchmarks.peers.truths import Judge
from benchmarks.peers.workload import Workload

QUIET = 2.0  # seconds without output, with all input read, after which the output is judged
SILENT = 15.0  # the same, whatever the group says
ANSWERS = 0.7  # seconds until the broker has answered all that was asked before: clients let it wait for half a second
TICK = 0.5  # seconds between two records that let time go on

Say = Callable[[str], None]


@lru_cache(maxsize=1)  # all systems on a workload, one after another
def judge_of(workload: Workload) -> Judge:
    return workload.judge()


@contextmanager
def started(room: Room, base: list[str], system: System, outcome: Outcome) -> Iterator[Running]:
    """The system, running; what goes wrong with it is noted, and its log kept, also if the time was over."""
    folder = BUILD / "runs" / room.name
    commands = system.commands(base, outcome.workload, room.bootstrap, room.name, folder, outcome.cores)
    try:
        with (
            Processes(commands, folder / "log.txt", outcome.cores, system.environment) as processes,
            Running(room, processes) as running,
        ):
            yield running
    except ProblemError as problem:
        outcome.problem = str(problem)
    if outcome.problem is None and not outcome.is_limited:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        outcome.log = str(folder / "log.txt")


def throughput(bootstrap: str, base: list[str], system: System, workload: Workload, cores: int, say: Say) -> Outcome:
    outcome = Outcome(workload.name, system.name, cores, workload.size)
    others = system.own_topics.get(workload.name, ())
    with Room(bootstrap, f"{workload.name}-{system.name}", workload.topics, others) as room:
        say("the backlog is written")
        judge = judge_of(workload)
        room.write(workload.first())
        before = room.ends(room.inputs)
        room.hold(workload.backlog())
        ends = room.ends(room.inputs, committed=False)
        is_there = workload.name in system.on_backlog
        if is_there:
            room.reveal(ends)
        say("starts")
        with started(room, base, system, outcome) as running:
            outcome.start_up = running.first_output()
            if not is_there:
                running.settle(before)
            say("works")
            done = _read(room, ends, before)
            begun = _revealed(running, ends)
            _work(running, Work(workload, judge, ends, before, begun, done, system.limit), outcome)
    return outcome


def _revealed(running: Running, ends: dict[Place, int]) -> Sample:
    """Shows the backlog to the system, all partitions in one moment: it is stopped while one follows another."""
    with running.processes.paused():
        time.sleep(ANSWERS)
        running.room.reveal(ends)
        return running.sample()


class Work(NamedTuple):
    """A backlog, from where to where it is, when the clock was started, how much had been done by then, its time."""

    workload: Workload
    judge: Judge
    ends: dict[Place, int]
    before: dict[Place, int]
    begun: Sample
    done: int
    limit: float


def _read(room: Room, ends: dict[Place, int], before: dict[Place, int]) -> int:
    """Records of the backlog that the system's group has read."""
    read = room.consumed()
    return sum(max(0, min(read.get(place, 0), end) - before[place]) for place, end in ends.items())


def _work(running: Running, work: Work, outcome: Outcome) -> None:
    running.samples[:] = [it for it in running.samples if it.moment >= work.begun.moment]
    output = _until_done(running, work)
    ended = running.samples[-1]
    outcome.records = work.workload.size - work.done
    if output is not None:
        ended = running.when(output)
    elif (read := _read(running.room, work.ends, work.before)) < work.workload.size:
        outcome.records, outcome.is_limited = read - work.done, True
    else:
        raise ProblemError(f"wrong: {work.judge.wrong() or 'the output came too late to be judged'}")
    outcome.seconds, outcome.cpu = ended.moment - work.begun.moment, ended.cpu - work.begun.cpu
    if work.workload.record_bytes is not None:
        outcome.megabytes = outcome.records * work.workload.record_bytes / 1e6


def _until_done(running: Running, work: Work) -> list[int] | None:
    """The offsets of the output that are all of it, or None if the time is over."""
    room, workload, begun = running.room, work.workload, work.begun.moment
    judged = ticked = begun
    ticks, read_since = 0, None
    while (now := time.monotonic()) - begun < work.limit:
        running.check()
        if workload.ticks and now - ticked > TICK:
            ticked, ticks = now, ticks + 1
            room.write(workload.ticks(ticks))
        if read_since is None and room.has_consumed(work.ends):
            read_since = now
        # What lets time go on causes output, too: there is no quiet then.
        calm_since = begun if workload.ticks else running.quiet_since()
        patience = SILENT if read_since is None else QUIET
        if now - max(calm_since, judged, read_since or 0) > patience and (read_since or not workload.ticks):
            output = room.judged(work.judge)
            if work.judge.wrong() is None:
                return output
            judged = time.monotonic()
        time.sleep(LOOK)
    return None
