"""An instance of an application in the simulation: it takes over the checkpoint, starts slots, and runs batches.

It does what `spark.run.Run`, `spark.real_time.RealTimeEngine` and `spark.slot_pool.SlotPool` do, with the real
coordinator, planner, registry of slots, placement, shared delivery and attempts. An instance that fails, or is killed,
starts again, perhaps with another version of the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.checkpoint.coordinator import CommitHooks, Coordinator
from headrace.checkpoint.ownership import LeaseHolder
from headrace.checkpoint.receipt import decode_receipt
from headrace.checkpoint.recovery import read_fingerprint
from headrace.checkpoint.sink_delivery import find_sinks
from headrace.checkpoint.steps import RANGES_PLANNED, step
from headrace.errors import AlreadyRunningError, StageRerunError, StreamsError
from headrace.model.ids import TaskId
from headrace.spark import wire_format
from headrace.spark.application_state import QueryStoppedError
from headrace.spark.batch_attempt import BatchAttempt
from headrace.spark.batch_planner import Planner, make_control, plan_orders
from headrace.spark.delivery_job import DeliveryOrder, SharedDelivery, read_share_answer
from headrace.spark.job import Job, decode_failure
from headrace.spark.placement import Placement
from headrace.spark.slot_messages import (
    AbortBatch,
    BatchBroken,
    BatchDone,
    Committed,
    DeliverShare,
    LocalState,
    RunBatch,
    ShareDelivered,
    Stop,
)
from headrace.spark.slot_registry import Registration, SlotRegistry
from tests.simulation.scheduler import Process
from tests.simulation.slots import SimulatedSlot, SlotLayout

if TYPE_CHECKING:
    from tests.simulation.world import World

MAX_ATTEMPTS = 10
TICK = 0.25  # seconds between two looks at the slots
REPLACEMENT, FIRST_SLOTS = 3.0, 10.0  # seconds: as in `slot_pool`


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
    """Runs batches in slots, until something fails."""

    def __init__(self, world: World, process: Process, coordinator: Coordinator, log: Any, job: Job) -> None:
        self.world, self.process, self.coordinator, self._log = world, process, coordinator, log
        self._job = job = job.with_checkpoint(coordinator.ledger, world.slots)
        self._registry = SlotRegistry(lease=10.0)
        self._registry.want(job.slots)
        self.slots: dict[int, SimulatedSlot] = {}  # by registration
        self._changed = process.condition()
        stateful = [task for task in job.all_tasks() if job.stores_of(task.subtopology)]
        self._placement = Placement(stateful, world.replicas, self._last_change)
        self._committed, self._lost_at, self._first_at = coordinator.ledger.number, 0.0, 0.0
        self._answers: dict[int, list[ShareDelivered]] = {}  # by round of shares
        self._rounds = 0
        self.shares = SharedDelivery(job, lambda: job.slots, self._deliver_shares)
        self._attempt: BatchAttempt | None = None
        self._attempts, self._failed, self._is_over = 0, list[StreamsError](), False
        self._stream_time = -1
        self.started: list[SimulatedSlot] = []
        process.at_exit.append(self._abandon_slots)
        process.start("heartbeat", self._beat)
        process.start("slots", self._watch_slots)

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
            for slot in self._registry.to_submit(scheduler.now):
                self._start_slot(slot)
            for registration in self._registry.expired(scheduler.now):
                lost = self.slots.get(registration.number)
                if lost is not None:
                    scheduler.note(f"{lost.process} counts as lost")
                    scheduler.after(
                        scheduler.random.uniform(0.0, scheduler.random.choice([1, 1, 30])), lost.process.kill
                    )
                    self._lose(registration.number)
            self.process.sleep(0.3)

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
        registry, now = self._registry, self.world.scheduler.now
        if isinstance(message, LocalState) and not slot.registration:
            self._register(slot)
        if slot.registration not in self.slots:
            return  # it was replaced
        registry.heard(slot.registration, now)
        match message:
            case LocalState():
                found = {TaskId(stage, partition): number for stage, partition, number in message.copies}
                self._placement.add_copies(slot.registration, found)
                self._first_at = self._first_at or now
                registry.make_ready(slot.registration)
            case ShareDelivered():
                if message.round in self._answers:  # else the batch is tried again already
                    self._answers[message.round].append(message)
            case BatchDone() if self._attempt is not None:
                self._attempt.finish(slot.registration, message)
            case BatchBroken() if self._attempt is not None:
                self._attempt.fail(slot.registration, message)
        self._changed.notify_all()

    def _register(self, slot: SimulatedSlot) -> None:
        process, now = slot.process, self.world.scheduler.now
        before = self._registry.registered(slot.number)
        registration = None
        if not process.is_dead:
            registration = self._registry.register(slot.number, process.host, 0, process.number, now)
        if registration is None:
            self.world.scheduler.after(0.0, process.kill)  # it is not wanted
            return
        slot.registration = registration.number
        self.slots[registration.number] = slot
        if before is not None:
            self._placement.forget_copies(before.number)
            self.slots.pop(before.number, None)

    def _end(self, slot: SimulatedSlot) -> None:
        """The Spark job of a slot has ended."""
        if self.process.is_dead or self._is_over:
            return
        current = self._registry.registered(slot.number)
        if current is None or current.number == slot.registration:
            self._lose(slot.registration)
            self._registry.end_job(slot.number, self.world.scheduler.now)

    def _lose(self, registration: int) -> None:
        self._registry.lose(registration, self.world.scheduler.now)
        self._lost_at = self.world.scheduler.now
        self._placement.forget_copies(registration)
        self.slots.pop(registration, None)
        if self._attempt is not None:
            self._attempt.lose(registration)
        self._changed.notify_all()

    def scale(self, slots: int) -> None:
        """Sets the number of slots, as `headrace scale` does. Tasks move with it."""
        self._registry.want(min(slots, len(self._job.all_tasks())))

    def _last_change(self, task: TaskId) -> int:
        version = self.coordinator.ledger.head(task).version
        return -1 if version is None else version.number

    def _lay_out(self) -> dict[TaskId, int]:
        """Waits for slots, and assigns the tasks to them."""
        while not self._is_settled(self._registry.live):
            self._wait_for(lambda: self._is_settled(self._registry.live), TICK)
        placement, live = self._placement, self._registry.live
        if placement.assign(self._job.all_tasks(), live):
            peers = {slot: self.slots[registration.number] for slot, registration in live.items()}
            layout = SlotLayout(dict(placement.places), dict(placement.standbys), peers, self._committed)
            self.world.count_placement(placement)
            for registration in live.values():
                self._send(registration.number, layout)
            for registration in self._registry.unwanted:
                self._send(registration.number, Stop())
        return placement.places

    def _is_settled(self, live: Mapping[int, Registration]) -> bool:
        """Whether to begin with the slots that are there."""
        now, layout, waiting = self.world.scheduler.now, self._placement.layout, self._registry.waiting
        if not live:
            return False
        if not layout:
            return not waiting or now - self._first_at > FIRST_SLOTS
        missing = layout.keys() - live.keys()
        expected = missing & set(waiting)
        return not expected or now - self._lost_at > REPLACEMENT or self._placement.has_standbys(missing, live)

    def _send(self, registration: int, message: Any) -> None:
        slot = self.slots.get(registration)
        if slot is not None:
            self.world.network.send(self.process, slot.process, lambda: slot.receive(message))

    def _wait_for(self, predicate: Any, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failed or predicate(), timeout)
        if self._failed:
            raise self._failed[0]

    # -------------------------------------------------------------------------------------------------------- batches
    def run(self) -> None:
        planner = Planner(self._job, self._log, seconds=self.process.seconds)
        clock = self.world.clock_of(self.process.host)
        while True:
            self.coordinator.check()
            self._lay_out()
            control = self._control()
            now = clock.now()
            ends = planner.plan_ends(control)
            if not ends and not planner.must_run(control, now):
                self._wait_for(lambda: False, 0.25)
                continue
            self._run_batch(planner, control, now, ends)

    def _control(self) -> Any:
        return make_control(self.coordinator.ledger, self.coordinator.damaged_tasks, self._stream_time)

    def _run_batch(self, planner: Planner, control: Any, clock: int, ends: Any) -> None:
        number, job = control.number + 1, self._job
        at_step = self.world.at_step(self.process)
        for failures in range(MAX_ATTEMPTS):
            with step(RANGES_PLANNED, at_step):
                planner.mark_planned(control)
            places = self._lay_out()
            attempt = self._begin(plan_orders(job, control, number, clock, ends, places.__getitem__))
            self._wait_for(lambda attempt=attempt: attempt.is_over, 1e9)
            self._attempt = None
            if attempt.broken is None:
                with suppress(StageRerunError):
                    return self._commit(number, clock, attempt)
            for registration in attempt.slots.values():
                self._send(registration, AbortBatch(attempt.number))
            self.process.sleep(0.1 * failures)
            control = self._control()
            ends = planner.plan_ends(control)
        raise QueryStoppedError(f"batch {number} could not be run")

    def _begin(self, orders: dict[tuple[int, int], bytes]) -> BatchAttempt:
        levels = range(len(self._job.plan.levels))
        slots = {slot: self._placement.layout[slot] for slot in sorted({slot for _, slot in orders})}
        self._attempts += 1
        self._attempt = attempt = BatchAttempt(self._attempts, slots)
        for slot, registration in slots.items():
            given = [orders.get((level, slot), b"") for level in levels]
            self._send(registration, RunBatch(attempt.number, list(slots), given))
        for registration in slots.values():
            if registration not in self.slots:
                attempt.lose(registration)
        return attempt

    def _commit(self, number: int, clock: int, attempt: BatchAttempt) -> None:
        messages = [wire_format.decode(raw) for raw in attempt.messages]
        for message in messages:
            if isinstance(message, wire_format.Failed):
                raise decode_failure(message)
        receipts = [decode_receipt(raw) for raw in messages if isinstance(raw, bytes)]
        self.coordinator.commit(number, clock, receipts)
        self._stream_time = max([self._stream_time, *(receipt.stream_time for receipt in receipts)])
        self._committed = number
        self._registry.reach_all()
        if any(self._placement.standbys.values()):
            for registration in self._placement.layout.values():
                self._send(registration, Committed(number))

    # --------------------------------------------------------------------------------------------------------- shares
    def _deliver_shares(self, number: int, orders: Sequence[DeliveryOrder]) -> list[Any]:
        """Has the slots deliver shares of a batch. Called in the threads of deliveries and of sinks."""
        self._rounds += 1
        share_round, answers = self._rounds, list[ShareDelivered]()
        self._answers[share_round] = answers
        try:
            return self._ask_slots(number, orders, share_round, answers)
        finally:
            del self._answers[share_round]

    def _ask_slots(
        self, number: int, orders: Sequence[DeliveryOrder], share_round: int, answers: list[ShareDelivered]
    ) -> list[Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._registry.live or self._is_over)
        slots = [registration.number for registration in self._registry.live.values()]
        if not slots:
            raise QueryStoppedError(f"batch {number} was not delivered: the slots are being ended")
        asked = {order.share: slots[order.share % len(slots)] for order in orders}
        self.world.happened["shares"] += len(orders)
        for order in orders:
            self._send(asked[order.share], DeliverShare(share_round, wire_format.encode(order)))
        found: list[Any] = []
        while asked:
            with self._changed:
                self._changed.wait_for(lambda: answers or not self.slots.keys() >= set(asked.values()))
            if not self.slots.keys() >= set(asked.values()):
                raise QueryStoppedError(f"a slot was lost while it delivered a share of batch {number}")
            answer = answers.pop(0)
            found.append(read_share_answer(answer, number))
            del asked[answer.share]
        return found
