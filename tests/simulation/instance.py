"""An instance of an application in the simulation: it takes over the checkpoint, starts slots, and runs batches.

It does what `spark.run.Run`, `spark.real_time.RealTimeEngine` and `spark.slot_pool.SlotPool` do, which have the threads
and sockets. What they decide is in the real classes: coordinator, planner, loop of batches, group of slots, shared
delivery. An instance that fails, or is killed, starts again, perhaps with another version of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.checkpoint.coordinator import CommitHooks, Coordinator
from headrace.checkpoint.ownership import LeaseHolder
from headrace.checkpoint.recovery import read_fingerprint
from headrace.checkpoint.sink_delivery import find_sinks
from headrace.errors import AlreadyRunningError, StreamsError
from headrace.model.ids import TaskId
from headrace.query.metrics import NodeIndex
from headrace.spark.batch_commits import BatchCommits
from headrace.spark.batch_loop import BatchLoop
from headrace.spark.batch_planner import Planner
from headrace.spark.delivery_job import DeliveryOrder, SharedDelivery, ShareRound
from headrace.spark.job import Job
from headrace.spark.placement import Messages, Placement, SlotGroup
from headrace.spark.slot_messages import BatchBroken, BatchDone, Hello, Layout, LocalState, ShareDelivered
from headrace.spark.stats import ApplicationStats
from tests.simulation.scheduler import Process
from tests.simulation.slots import SimulatedSlot, SlotLayout

if TYPE_CHECKING:
    from tests.simulation.world import World

TICK = 0.25  # seconds between two looks at the slots that deliver shares
MOST_IDLE = 0.25  # seconds between two looks at a log without new records


class Instance:
    """One of the instances of the application, in a process that is started again whenever it ends."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.lives = world, number, 0
        self.process: Process
        self.engine: Engine | None = None
        self.start()

    def start(self) -> None:
        """Starts its process. When that ends, the next one follows."""
        world, self.lives, self.engine = self.world, self.lives + 1, None
        self.version = world.scheduler.random.choice(world.program.versions)
        host = world.hosts[self.number % len(world.hosts)]
        self.process = process = world.scheduler.process(f"driver {self.number}.{self.lives}", host)
        process.at_exit.append(lambda: world.scheduler.after(world.scheduler.random.uniform(0.1, 8.0), self.start))
        process.start("main", self._main)

    def _main(self) -> None:
        world, process = self.world, self.process
        while True:
            try:
                self._run()
            except AlreadyRunningError:
                pass
            except StreamsError as error:
                world.scheduler.note(f"{process} stops: {type(error).__name__}")
                world.examine(error, None if self.engine is None else self.engine.coordinator)
            self.engine = None
            process.sleep(world.scheduler.random.uniform(0.1, 3.0))

    def _run(self) -> None:
        world, process = self.world, self.process
        storage, log = world.storage(process), world.log(process)
        before = read_fingerprint(storage) if len(world.program.versions) > 1 else None
        job, fingerprint = self.version.plan(before)
        sources = world.program.sources
        coordinator = Coordinator.open(
            storage,
            log,
            job.application,
            fingerprint,
            topics={topic: log.topic(topic).id for topic in sources},
            positions={at: extent.earliest for at, extent in log.extents(sources).items()},
            divider=self.version.divider,
            sinks=find_sinks(job.graph, job.config),
            options=world.options,
            hooks=CommitHooks(
                clock=world.clock_of(process.host),
                threads=process,
                process=LeaseHolder(process.host, process.host, process.number, str(process.number)),
                has_exited=world.has_exited,
                at_step=world.at_step(process),
                deliver_in_shares=lambda number: self.engine and self.engine.shares.deliver(log, number),
                write_in_slots=lambda *order: self.engine and self.engine.shares.write_sink(*order),
            ),
        )
        world.monitor.check_owner(coordinator.ledger.number, coordinator._builder.epoch)
        world.scheduler.note(f"{process} owns the checkpoint")
        world.count_version(self.version)
        self.engine = engine = Engine(world, process, coordinator, log, job)
        try:
            engine.run()
        finally:
            process.check()
            engine.close()
            with suppress(StreamsError):
                coordinator.close(timeout=5.0)


class Engine:
    """Runs batches in slots, until something fails. `BatchLoop` knows it as `Slots`."""

    def __init__(self, world: World, process: Process, coordinator: Coordinator, log: Any, job: Job) -> None:
        self.world, self.process, self.coordinator = world, process, coordinator
        self._job = job = world.job_for(job.with_checkpoint(coordinator.ledger, world.slots), process)
        stateful = [task for task in job.all_tasks() if job.stores_of(task.subtopology)]
        placement = Placement(stateful, world.replicas, self._last_change)
        self._group = SlotGroup(10.0, placement, coordinator.ledger.number)
        self._group.registry.want(job.slots)
        self.slots: dict[int, SimulatedSlot] = {}  # by registration
        self._changed = process.condition()
        self._events: list[tuple[int, Any]] = []  # messages for the loop, each with the registration of its slot
        self._answers: dict[int, list[ShareDelivered]] = {}  # by round of shares
        self._rounds = 0
        self.shares = SharedDelivery(job, lambda: job.slots, self._deliver_shares)
        self._failed, self._is_over = list[StreamsError](), False
        self.started: list[SimulatedSlot] = []
        clock = world.clock_of(process.host)
        stats = ApplicationStats(NodeIndex(job.graph, job.application), None)
        self._loop = BatchLoop(
            job,
            Planner(job, log, seconds=process.seconds),
            BatchCommits(job, coordinator, stats, clock=clock, seconds=process.seconds),
            self,
            clock=clock,
            seconds=process.seconds,
            estimate_wait=coordinator.estimate_wait,
            on_commit=self._on_commit,
        )
        process.at_exit.append(self._abandon_slots)
        process.start("heartbeat", self._beat)
        process.start("slots", self._watch_slots)

    def run(self) -> None:
        while True:
            self.coordinator.check()
            wait = self._loop.advance()
            with self._changed:
                self._changed.wait_for(
                    lambda: self._failed or self._events, MOST_IDLE if wait.for_records else wait.seconds
                )
            if self._failed:
                raise self._failed[0]
            events, self._events = self._events, []
            for registration, message in events:
                self._loop.handle(registration, message)

    def close(self) -> None:
        self._is_over = True
        self._abandon_slots()

    def _abandon_slots(self) -> None:
        """The slots learn a little later that their driver is gone; much later if they stand still or are cut off."""
        random = self.world.scheduler.random
        for slot in self.started:
            most = 30.0 if slot.process.outlives_parent else random.choice([2.0, 2.0, 2.0, 20.0])
            self.world.scheduler.after(random.uniform(0.0, most), slot.process.kill)

    def _beat(self) -> None:
        while not self._is_over:
            self.process.sleep(1.0)
            try:
                self.coordinator.renew_lease()
            except StreamsError as error:
                self._failed.append(error)
                return

    # ---------------------------------------------------------------------------------------------------------- slots
    def _watch_slots(self) -> None:
        scheduler = self.world.scheduler
        while not self._is_over:
            for slot in self._group.registry.to_submit(scheduler.now):
                self._start_slot(slot)
            for registration in self._group.registry.expired(scheduler.now):
                self._replace(registration.number, "counts as lost")
            self.process.sleep(0.3)

    def _replace(self, registration: int, why: str) -> None:
        """Has the process of a slot end, sooner or later, and goes on without it."""
        scheduler, lost = self.world.scheduler, self.slots.get(registration)
        if lost is not None:
            scheduler.note(f"{lost.process} {why}")
            scheduler.after(scheduler.random.uniform(0.0, scheduler.random.choice([1, 1, 30])), lost.process.kill)
            self._lose(registration)

    def _start_slot(self, number: int) -> None:
        world = self.world
        host = self.process.host if world.is_local else world.scheduler.random.choice(world.hosts)
        process = world.scheduler.process(f"slot {number} of {self.process}", host)
        process.parent = self.process
        slot = SimulatedSlot(world, number, process, world.job_for(self._job, process), self._heard)
        self.started.append(slot)

        def ended() -> None:
            world.scheduler.after(world.scheduler.random.uniform(0.0, 0.5), lambda: self._end(slot))

        process.at_exit.append(ended)

    def _heard(self, slot: SimulatedSlot, message: Any) -> None:
        """A slot sends a message."""
        self.world.network.send(slot.process, self.process, lambda: self._handle(slot, message))

    def _handle(self, slot: SimulatedSlot, message: Any) -> None:
        now = self.world.scheduler.now
        if isinstance(message, LocalState) and not slot.registration:
            self._register(slot)
        if slot.registration not in self.slots:
            return  # it was replaced
        self._group.registry.heard(slot.registration, now)
        match message:
            case LocalState():
                self._group.make_ready(slot.registration, message, now)
            case ShareDelivered():
                if message.round in self._answers:  # else the batch is tried again already
                    self._answers[message.round].append(message)
            case BatchDone() | BatchBroken():
                self._events.append((slot.registration, message))
        self._changed.notify_all()

    def _register(self, slot: SimulatedSlot) -> None:
        process, now = slot.process, self.world.scheduler.now
        registration = before = None
        if not process.is_dead:
            registration, before = self._group.register(Hello(slot.number, process.host, 0, process.number), now)
        if registration is None:
            self.world.scheduler.after(0.0, process.kill)  # it is not wanted
            return
        slot.registration = registration.number
        self.slots[registration.number] = slot
        if before is not None:
            self.slots.pop(before.number, None)
            self._events.append((before.number, None))

    def _end(self, slot: SimulatedSlot) -> None:
        """The Spark job of a slot has ended."""
        if self.process.is_dead or self._is_over:
            return
        registry = self._group.registry
        current = registry.registered(slot.number)
        if current is None or current.number == slot.registration:
            self._lose(slot.registration)
            registry.end_job(slot.number, self.world.scheduler.now)

    def _lose(self, registration: int) -> None:
        self._group.lose(registration, self.world.scheduler.now)
        self.slots.pop(registration, None)
        self._events.append((registration, None))
        self._changed.notify_all()

    def scale(self, slots: int) -> None:
        """Sets the number of slots, as `headrace scale` does. Tasks move with it."""
        self._group.registry.want(min(slots, len(self._job.all_tasks())))

    def _last_change(self, task: TaskId) -> int:
        version = self.coordinator.ledger.head(task).version
        return -1 if version is None else version.number

    # ------------------------------------------------------------------------------- what the loop of batches needs
    @property
    def layout(self) -> dict[int, int]:
        return self._group.placement.layout

    def lay_out(self, tasks: list[TaskId]) -> dict[TaskId, int] | None:
        messages = self._group.lay_out(tasks, self.world.scheduler.now)
        if messages is None:
            return None
        if messages:
            self.world.count_placement(self._group.placement)
            self._send_all(messages)
        return self._group.placement.places

    def is_live(self, registration: int) -> bool:
        return registration in self.slots

    def send(self, registration: int, message: Any) -> None:
        slot = self.slots.get(registration)
        if isinstance(message, Layout):
            message = SlotLayout(message, {peer.slot: self.slots[peer.registration] for peer in message.peers})
        if slot is not None:
            self.world.network.send(self.process, slot.process, lambda: slot.receive(message))

    def _send_all(self, messages: Messages) -> None:
        for registration, message in messages:
            self.send(registration, message)

    def replace_unreached(self, reporter: int, peer: int, attempt: int) -> None:
        lost = self._group.registry.fail_to_reach(reporter, peer, attempt)
        if lost is not None:
            self._replace(lost.number, "is replaced: it and another slot do not reach each other")

    def _on_commit(self, number: int) -> None:
        self.world.monitor.check_owner(number, self.coordinator._builder.epoch)
        self._send_all(self._group.commit(number))

    # --------------------------------------------------------------------------------------------------------- shares
    def _deliver_shares(self, number: int, orders: Sequence[DeliveryOrder]) -> list[Any]:
        """Has the slots deliver shares of a batch. Called in the threads of deliveries and of sinks."""
        self._rounds += 1
        share_round, answers = self._rounds, list[ShareDelivered]()
        self._answers[share_round] = answers
        try:
            registry = self._group.registry
            with self._changed:
                self._changed.wait_for(lambda: registry.live or self._is_over)
            shares = ShareRound(number, share_round, orders, [some.number for some in registry.live.values()])
            self.world.happened["shares"] += len(orders)
            self._send_all(shares.messages)
            while not shares.is_over:
                shares.check_slots(self.is_live)
                with self._changed:
                    self._changed.wait_for(lambda: answers, TICK)
                if answers:
                    shares.finish(answers.pop(0))
            return shares.results
        finally:
            del self._answers[share_round]
