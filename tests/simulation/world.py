"""The world of a run: storage, log, hosts, clocks, instances, and the faults that happen to them.

`simulate` runs a seed. While it runs, a `Monitor` looks at every file that is created or deleted; at the end the log is
compared with the test driver's output.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from headrace.checkpoint.compaction import CompactionPolicy
from headrace.checkpoint.coordinator import CommitOptions, Coordinator
from headrace.checkpoint.ownership import LeaseHolder
from headrace.checkpoint.steps import MANIFEST, TAKEOVER
from headrace.errors import CheckpointMismatchError, StateCorruptedError, StreamsError
from headrace.spark.application_state import QueryStoppedError
from headrace.spark.job import Job
from headrace.spark.placement import Placement
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults
from tests.simulation.instance import Instance
from tests.simulation.kafka import Broker
from tests.simulation.log import StoredLog
from tests.simulation.monitor import Monitor
from tests.simulation.programs import APPLICATION, Input, Program, UnfitError, Version, plan_program, random_input
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.slots import HostState, Network
from tests.simulation.storage import Bucket

EPOCH = 1_000_000_000  # ms: what clocks show when a run begins
CHAOS = 60.0  # seconds in which faults happen
LAST_MOMENTS = (f"before {MANIFEST}", f"before {TAKEOVER}")  # the owner has checked that it is the owner
GLOBALS_EVERY = 7  # seeds, of which one runs the family "globals"; the others draw from the other families
MOST_EVENTS, MOST_SECONDS = 60_000, 2_000.0
LOSSES = (StateCorruptedError, CheckpointMismatchError)  # they say that data is lost, or that other data is there
FINDINGS = (AssertionError, *LOSSES)  # what the checks of a run raise; any other error is one of the simulation itself


@dataclass(frozen=True)
class Limits:
    """What a run may do, in the search for a smaller failure."""

    records: int | None = None
    faults: int = 60
    without: frozenset[str] = frozenset()
    instances: int | None = None
    slots: int | None = None
    statements: tuple[int, ...] = ()  # of the topology, that are left out
    family: str | None = None  # of the program; None: the seed decides


@dataclass
class Outcome:
    """How a run ended."""

    digest: str
    events: int
    seconds: float
    batches: int
    records: int
    takeovers: int
    happened: dict[str, int]  # shares, layouts of slots, standbys, warm-ups, changed programs
    faults: dict[str, int] = field(default_factory=dict[str, int])
    trace: list[str] | None = None


class HostClock:
    """The clock of a host, which may jump."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self.offset = scheduler, 0

    def now(self) -> int:
        return EPOCH + int(1000 * self._scheduler.now) + self.offset


class World:
    """Everything in a run."""

    def __init__(self, seed: int, limits: Limits, *, keep_trace: bool = False) -> None:
        self.scheduler = scheduler = Scheduler(seed, keep_trace=keep_trace)
        random = scheduler.random
        self.input, self.program = choose_program(seed, limits, random)
        instances = limits.instances or random.choice([1, 1, 2, 3])
        self.slots = limits.slots or random.choice([1, 2, 3])
        self.replicas = random.choice([0, 0, 1, 2])
        self.happened = Counter[str]()
        self._version: Version | None = None  # of the last owner
        self.hosts = ["one", "two", "three"][: random.choice([1, 2, 3])]
        is_on_disk = random.random() < 0.3
        if is_on_disk:
            self.hosts = self.hosts[:1]
        self.is_local = random.random() < 0.5  # slots run on the host of their driver
        self.rows_in_memory = random.choice([0, 100, 1 << 20])
        without = limits.without
        if self.input.case is not None and self.input.case.says("leftJoin", "outerJoin", "close"):
            without |= {"move a clock"}  # as in Kafka Streams, results that wait for their time wait for the clock, too
        self.faults = Faults(scheduler, limits.faults, without)
        self.options = CommitOptions(
            exactly_once=seed % 10 != 9,
            max_undelivered=random.choice([0, 1, 2, 2]),
            background=random.random() < 0.8,
            lease_ms=random.choice([3_000, 6_000, 15_000]),
            keep=random.choice([1, 2, 3, 10]),
            purge_every=random.choice([1, 2, 5]),
            purge_delay_ms=(0, 200, 1_000)[seed % 3],
            full_up_to=random.choice([0, 4, 1000]),
            share_bytes=random.choice([0, 0, 100, 1 << 30]),
            sink_backlog=random.choice([1, 2, 10]),
            sink_backoff_ms=5_000,
            compaction=CompactionPolicy(
                max_deltas=random.choice([2, 3, 8]), min_bytes=random.choice([1, 200]), max_age=random.choice([3, 10])
            ),
        )
        self.bucket = Disk(scheduler, self.faults) if is_on_disk else Bucket()
        is_kafka = random.random() < 0.5
        topics = self.program.topics
        self.stored = Broker(topics, scheduler, self.faults) if is_kafka else StoredLog(topics)
        self.stored.may_repeat = not self.options.exactly_once
        self._stores_chunks = random.random() < 0.5
        if self.program.target is not None:
            self.program.target.scheduler, self.program.target.faults = scheduler, self.faults
        self.monitor = Monitor(self.bucket, self.stored, scheduler)
        self.network = Network(self)
        self._clocks = {host: HostClock(scheduler) for host in self.hosts}
        self._states = {host: HostState() for host in self.hosts}
        self._fed = self._is_calm = False
        self.instances = [Instance(self, number) for number in range(instances)]
        nature = scheduler.process("nature")
        nature.start("input", lambda: self._feed(nature))
        nature.start("chaos", lambda: self._disturb(nature))

    # ---------------------------------------------------------------------------------------- what processes get of it
    def storage(self, process: Process) -> Any:
        return self.bucket.storage(process, self.faults)

    def log(self, process: Process) -> Any:
        return self.stored.connect(process, self.faults, stores_chunks=self._stores_chunks)

    def state_of(self, host: str) -> HostState:
        return self._states[host]

    def clock_of(self, host: str) -> HostClock:
        return self._clocks[host]

    def has_exited(self, holder: LeaseHolder, observer: LeaseHolder) -> bool:
        return holder.machine == observer.machine and self.scheduler.processes[holder.process].is_dead

    def at_step(self, process: Process) -> Callable[[str], None]:
        def at_step(moment: str) -> None:
            process.check()
            self.scheduler.note(f"{process} {moment}")
            if self.faults.happens("kill at a step"):
                self.scheduler.note(f"{process} is killed {moment}")
                process.exit()
            if moment in LAST_MOMENTS and self.faults.happens("pause before a manifest"):
                self._pause_process(process)
                process.sleep(0.0)

        return at_step

    def job_for(self, job: Job, process: Process) -> Job:
        return replace(job, at_step=self.at_step(process))

    def examine(self, error: StreamsError, coordinator: Coordinator | None) -> None:
        """An instance has stopped with an error. What says that data is lost must not come while nothing is lost."""
        reason = error.__cause__ if isinstance(error, QueryStoppedError) else error  # such as one of planning
        is_loss = isinstance(reason, LOSSES)
        is_owner = coordinator is None or coordinator._builder.epoch >= self.monitor.last_epoch
        if (is_loss and is_owner) or not isinstance(error, StreamsError):
            self.scheduler.failures.append(error)

    def count_version(self, version: Version) -> None:
        self.happened["changed programs"] += self._version not in (None, version)
        self._version = version

    def count_placement(self, placement: Placement) -> None:
        self.happened["layouts"] += 1
        self.happened["standbys"] += sum(map(len, placement.standbys.values()))
        self.happened["warm-ups"] += len(placement._warmups)

    # ------------------------------------------------------------------------------------------------- what happens
    def _feed(self, nature: Process) -> None:
        random = self.scheduler.random
        pace = random.choice([0.0, 0.3, 0.8]) * CHAOS / len(self.program.feed)  # all at once, or most of the time
        for at, row in self.program.feed:
            nature.sleep(random.uniform(0.0, 2.0) * pace)
            self.stored.rows[at].append(row)
        self._fed = True

    def _disturb(self, nature: Process) -> None:
        random = self.scheduler.random
        pace = random.choice([1.0, 5.0, 20.0])
        while self.scheduler.now < CHAOS and not self.faults.are_over:
            nature.sleep(random.expovariate(1 / pace))
            faults = [self._kill_driver, self._kill_slot, self._pause, self._move_clock, self._stop_machine]
            random.choice([*faults, self._restart_broker, self._scale])()
        nature.sleep(max(0.0, CHAOS - self.scheduler.now))
        self.faults.most = 0
        self._is_calm = True
        self.scheduler.note("faults are over")

    def _alive(self, kind: str) -> list[Process]:
        return [some for some in self.scheduler.processes if not some.is_dead and some.name.startswith(kind)]

    def _kill(self, processes: list[Process], kind: str) -> None:
        if processes and self.faults.happens(kind, 1.0):
            process = self.scheduler.random.choice(processes)
            self.scheduler.note(f"{process} is killed")
            self.scheduler.after(0.0, process.kill)

    def _kill_driver(self) -> None:
        self._kill(self._alive("driver"), "kill a driver")

    def _kill_slot(self) -> None:
        self._kill(self._alive("slot"), "kill a slot")

    def _pause(self) -> None:
        alive = [*self._alive("driver"), *self._alive("slot")]
        if alive and self.faults.happens("pause a process", 1.0):
            self._pause_process(self.scheduler.random.choice(alive))

    def _pause_process(self, process: Process) -> None:
        process.paused_until = self.scheduler.now + self.scheduler.random.choice([0.5, 5.0, 20.0, 40.0])
        self.scheduler.note(f"{process} is paused until {process.paused_until:.3f}")

    def _move_clock(self) -> None:
        if self.faults.happens("move a clock", 1.0):
            host = self.scheduler.random.choice(self.hosts)
            by = self.scheduler.random.choice([-100_000, -10_000, -500, 500, 10_000, 100_000])
            self._clocks[host].offset += by
            self.scheduler.note(f"the clock of {host} moves by {by} ms")

    def _restart_broker(self) -> None:
        if isinstance(self.stored, Broker) and self.faults.happens("restart the broker", 1.0):
            self.scheduler.note("the broker restarts")
            self.stored.hide()

    def _scale(self) -> None:
        engines = [instance.engine for instance in self.instances if instance.engine is not None]
        if engines and self.faults.happens("change the number of slots", 1.0):
            slots = self.scheduler.random.choice([1, 2, 3])
            self.scheduler.note(f"there are to be {slots} slots")
            self.scheduler.random.choice(engines).scale(slots)

    def _stop_machine(self) -> None:
        if self.faults.happens("stop the machine", 0.3):
            host = self.scheduler.random.choice(self.hosts)
            self.scheduler.note(f"{host} stops")
            for process in [*self._alive("driver"), *self._alive("slot")]:
                if process.host == host:
                    self.scheduler.after(0.0, process.kill)
            if self.scheduler.random.random() < 0.5:
                self.scheduler.after(0.0, self._states[host].copies.clear)
            if isinstance(self.bucket, Disk):
                self.scheduler.after(0.0, self.bucket.stop)
                self.scheduler.after(0.0, self.monitor.go_back)

    # ---------------------------------------------------------------------------------------------------------- its end
    def run(self) -> Outcome:
        self.scheduler.run(self._is_settled, most_events=MOST_EVENTS, until=MOST_SECONDS)
        self.monitor.check_end()
        self.program.compare(self.stored, self.monitor.commits)
        return Outcome(
            self.scheduler.digest,
            self.scheduler.events,
            self.scheduler.now,
            self.monitor.last_number + 1,
            self.input.size,
            self.monitor.last_epoch,
            dict(self.happened),
            dict(self.faults.happened),
            self.scheduler.trace,
        )

    def _is_settled(self) -> bool:
        if not (self._fed and self._is_calm and self.monitor.has_settled(self.program.sources, APPLICATION)):
            return False
        return self.program.target is None or any(map(self._has_served_sinks, self.instances))

    def _has_served_sinks(self, instance: Instance) -> bool:
        coordinator = None if instance.engine is None else instance.engine.coordinator
        if coordinator is None or coordinator._builder.epoch != self.monitor.last_epoch:
            return False
        return coordinator.sinks.has(self.monitor.last_number)


@contextmanager
def seeded_ids(seed: int) -> Generator[None]:
    """Attempts, checkpoints and producers get ids that a seed decides."""
    random, before = Random(seed), secrets.token_hex  # noqa: S311 - it must repeat
    secrets.token_hex = lambda nbytes=None: f"{random.getrandbits(8 * (nbytes or 32)):0{2 * (nbytes or 32)}x}"
    try:
        yield
    finally:
        secrets.token_hex = before


def choose_program(seed: int, limits: Limits, tags: Random) -> tuple[Input, Program]:
    """Draws inputs until one is fit, and makes that smaller as the limits say."""
    random = Random(seed)  # noqa: S311 - it must repeat
    family = limits.family or ("globals" if seed % GLOBALS_EVERY == 0 else None)
    while True:
        chosen = random_input(random, family)
        with suppress(UnfitError):
            program = plan_program(chosen, tags)
            if program.feed:
                break
    if limits.records is None and not limits.statements:
        return chosen, program
    for statement in limits.statements:
        chosen = chosen.leave_out(statement)
    chosen = chosen.shorten(chosen.size if limits.records is None else limits.records)
    return chosen, plan_program(chosen, tags)


def simulate(seed: int, limits: Limits | None = None, *, keep_trace: bool = False) -> Outcome:
    """Runs a seed. Raises what it finds."""
    with seeded_ids(seed):
        world = World(seed, limits or Limits(), keep_trace=keep_trace)
        with world.bucket.in_use():
            return world.run()
