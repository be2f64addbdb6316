"""A slot in the simulation: the real `SlotRunner` and `Exchange`, in a simulated process, behind a simulated network.

It does what `spark.slot.Slot` does: it runs the levels of a batch, waits for the rows of other slots before each,
keeps standbys, delivers shares of large batches, and ends when its connection to the driver ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from headrace.checkpoint.restore import MemoryEngineProvider
from headrace.errors import StreamsError
from headrace.model.ids import TaskId
from headrace.spark import wire_format
from headrace.spark.delivery_job import ShareWriter
from headrace.spark.exchange import Delivery, Exchange
from headrace.spark.job import Job
from headrace.spark.slot_messages import (
    AbortBatch,
    BatchBroken,
    BatchDone,
    Committed,
    DeliverShare,
    Heartbeat,
    Layout,
    LocalState,
    RunBatch,
    ShareDelivered,
    SlotRows,
    Stop,
)
from headrace.spark.slot_runner import SlotRunner
from headrace.spark.standbys import LocalStateKeeper
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


CLEANUP_DELAY = 20.0  # seconds after which copies that no slot holds are removed
_POLL = 0.02  # seconds between two looks at a copy that another slot is about to release


class Network:
    """Messages between processes. Those from one process to another arrive in the order in which they were sent."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: dict[tuple[int, int], float] = {}  # when the last message from one process to another arrives

    def send(self, sender: Process, receiver: Process, receive: Callable[[], None]) -> None:
        """Has a function called when the message arrives, unless the receiver is dead then."""
        sender.check()
        scheduler = self._world.scheduler
        pair = (sender.number, receiver.number)
        when = max(self._last.get(pair, 0.0), scheduler.now + scheduler.random.expovariate(1000))
        self._last[pair] = when
        scheduler.at(when, lambda: None if receiver.is_dead else receive())


class HostState:
    """The local state of the tasks on one host, which outlives processes. A process holds the copies that it uses."""

    def __init__(self) -> None:
        self.copies: dict[TaskId, list[tuple[MemoryEngineProvider, list[Process]]]] = {}

    def free(self, task: TaskId) -> list[tuple[MemoryEngineProvider, list[Process]]]:
        """The copies that no living process holds."""
        return [copy for copy in self.copies.get(task, []) if not copy[1] or copy[1][0].is_dead]

    def claim(self, task: TaskId, process: Process, others: int | None) -> MemoryEngineProvider | None:
        """The latest free copy, or a new one; None while more than `others` other processes hold copies."""
        copies, free = self.copies.setdefault(task, []), self.free(task)
        if not free and others is not None and len(copies) > others:
            return None
        if not free:
            free = [(MemoryEngineProvider(), [])]
            copies += free
        provider, holder = max(free, key=lambda copy: _number(copy[0]))
        holder[:] = [process]
        return provider

    def release(self, task: TaskId, process: Process) -> None:
        for _, holder in self.copies.get(task, []):
            if holder == [process]:
                holder.clear()


def _number(provider: MemoryEngineProvider) -> int:
    """The last batch in a copy."""
    version = provider.open().version
    return -1 if version is None else version.number


class _Held(MemoryEngineProvider):
    """A copy in the hands of a process: closing it changes nothing."""

    def __init__(self, provider: MemoryEngineProvider) -> None:
        self._provider = provider

    def open(self) -> Any:
        return self._provider.open()

    def clear(self) -> Any:
        return self._provider.clear()

    def close(self) -> None:
        pass


class SimulatedCopies:
    """What `SlotRunner` uses of `LocalCopies`."""

    def __init__(self, host: HostState, process: Process) -> None:
        self._host, self._process = host, process
        self._held: dict[TaskId, _Held] = {}

    def open(self, task: TaskId, *, others: int | None = None, patience: float = 0.0) -> _Held:
        process = self._process
        process.check()
        end = process.seconds() + patience
        while task not in self._held:
            found = self._host.claim(task, process, others if process.seconds() < end else None)
            if found is None:
                process.sleep(_POLL)
            else:
                self._held[task] = _Held(found)
        return self._held[task]

    def release(self, task: TaskId) -> None:
        if self._held.pop(task, None) is not None:
            self._host.release(task, self._process)

    def close(self) -> None:
        for task in list(self._held):
            self.release(task)

    def list_free(self) -> dict[TaskId, int]:
        found = {task: [_number(copy) for copy, _ in self._host.free(task)] for task in sorted(self._host.copies)}
        return {task: max(numbers) for task, numbers in found.items() if max(numbers, default=-1) >= 0}

    def remove_unused(self, delay: float, now: float) -> list[str]:
        """Removes copies that no process holds. How long ago one was used is left to chance."""
        random, removed = self._process.scheduler.random, list[str]()
        for task in sorted(self._host.copies):
            for copy in self._host.free(task):
                if random.random() < 0.3:
                    self._host.copies[task].remove(copy)
                    removed.append(str(task))
        return removed


@dataclass(frozen=True)
class SlotLayout:
    """A `Layout`, and the slots themselves instead of their addresses."""

    message: Layout
    peers: Mapping[int, SimulatedSlot]


class SimulatedSlot:
    """One slot process. `report` sends a message to the driver that started it."""

    def __init__(
        self, world: World, number: int, process: Process, job: Job, report: Callable[[SimulatedSlot, Any], None]
    ) -> None:
        self.world, self.number, self.process, self._job, self._report = world, number, process, job, report
        self.registration = 0
        self.peers: Mapping[int, SimulatedSlot] = {}
        self._changed = process.condition()
        self._inbox: list[Any] = []
        self._exchange = Exchange(world.rows_in_memory, BytesIO)
        self._shares: dict[str, list[DeliverShare]] = {}  # by sink; "" for the log
        process.start("main", self._serve)

    # ------------------------------------------------------------------------------------------------ what it is told
    def receive(self, message: Any) -> None:
        """A message has arrived: it is handled at once, as the thread of an endpoint does."""
        match message:
            case SlotRows(attempt, slot, level, is_end, rows):
                self._exchange.add(Delivery(attempt, slot, level, is_end, rows))
            case AbortBatch(attempt):
                self._exchange.abort(attempt)
            case _:
                self._inbox.append(message)
        self._changed.notify_all()

    def _serve(self) -> None:
        world, process = self.world, self.process
        process.sleep(world.scheduler.random.uniform(0.05, 1.0))  # the start of a process
        storage, log = world.storage(process), world.log(process)  # what a slot does not use is missing
        copies: Any = SimulatedCopies(world.state_of(process.host), process)
        runner = SlotRunner(self._job, copies, storage=storage, log=log, threads=process)
        keeper = LocalStateKeeper(runner.standbys, copies, CLEANUP_DELAY, self._tell_copies, process)
        process.start("heartbeat", self._beat)
        self._tell_copies(copies.list_free())
        while True:
            self._changed.wait_for(lambda: self._inbox)
            match self._inbox.pop(0):
                case RunBatch() as batch:
                    self._run(runner, batch)
                case SlotLayout() as layout:
                    self._take_layout(runner, layout)
                    keeper.commit(layout.message.committed)
                case Committed() as committed:
                    keeper.commit(committed.number)
                case DeliverShare() as share:
                    self._deliver(share)
                case Stop():
                    process.exit()

    def _take_layout(self, runner: SlotRunner, layout: SlotLayout) -> None:
        self.peers, message = layout.peers, layout.message
        here = [peer.slot for peer in message.peers if peer.host == self.process.host]
        runner.take_places(message.place_tasks(), self.number, message.place_standbys(), here)

    def _tell_copies(self, numbers: Mapping[TaskId, int]) -> None:
        self._tell(LocalState([(task.subtopology, task.partition, number) for task, number in numbers.items()]))

    def _beat(self) -> None:
        while True:
            self.process.sleep(1.0)
            self._tell(Heartbeat())

    def _tell(self, message: Any) -> None:
        self._report(self, message)

    # -------------------------------------------------------------------------------------------------------- a batch
    def _run(self, runner: SlotRunner, batch: RunBatch) -> None:
        if batch.attempt < self._exchange.attempt:
            return  # it was aborted before it began
        self._exchange.begin(batch.attempt, set(batch.slots))
        results: list[bytes] = []
        try:
            for level, orders in enumerate(batch.levels):
                self._changed.wait_for(
                    lambda level=level: self._exchange.attempt != batch.attempt or self._exchange.is_ready(level)
                )
                if self._exchange.attempt != batch.attempt:
                    return
                rows = self._exchange.take(level)
                messages = runner.handle(orders, rows) if orders else []
                self._send_rows(batch, level, messages, results)
        except StreamsError as error:
            self._tell(BatchBroken(batch.attempt, str(error), None))
        else:
            self._tell(BatchDone(batch.attempt, results, [0.0] * len(batch.levels), [0.0] * len(batch.levels)))

    def _send_rows(self, batch: RunBatch, level: int, messages: Any, results: list[bytes]) -> None:
        by_slot, others = wire_format.split_results(messages, batch.slots)
        results += others
        if level + 1 == len(batch.levels):
            return
        for slot, rows in by_slot.items():
            message = SlotRows(batch.attempt, self.number, level, True, rows)
            if slot == self.number:
                self.receive(message)
            elif self.world.faults.happens("rows are lost"):
                self._tell(BatchBroken(batch.attempt, "the connection was lost", slot))
            elif slot in self.peers:
                peer = self.peers[slot]
                self.world.network.send(self.process, peer.process, lambda peer=peer, m=message: peer.receive(m))

    # --------------------------------------------------------------------------------------------------------- shares
    def _deliver(self, message: DeliverShare) -> None:
        order = wire_format.decode(message.order)
        target = order.sink if isinstance(order, wire_format.SinkOrder) else ""
        if target not in self._shares:
            self._shares[target] = []
            self.process.start("shares", lambda: self._deliver_shares(self._shares[target]))
        self._shares[target].append(message)
        self._changed.notify_all()

    def _deliver_shares(self, shares: list[DeliverShare]) -> None:
        world, process = self.world, self.process
        writer = ShareWriter(self._job, storage=world.storage(process), log=world.log(process))
        while True:
            self._changed.wait_for(lambda: shares)
            message = shares.pop(0)
            order: Any = wire_format.decode(message.order)
            try:
                ((_, answer),) = writer.handle(message.order, [])
                reason = ""
            except Exception as error:  # noqa: BLE001 - the driver tries again
                process.check()
                answer, reason = b"", f"{type(error).__name__}: {error}"
            self._tell(ShareDelivered(message.round, order.share, answer, reason, reason))
