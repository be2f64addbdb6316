"""A slot in the simulation: the real `SlotRunner` and `Exchange`, in a simulated process, behind a simulated network.

It does what `spark.slot.Slot` does: it runs the levels of a batch, waits for the rows of other slots before each, and
ends when its connection to the driver ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from headrace.checkpoint.restore import MemoryEngineProvider
from headrace.errors import StreamsError
from headrace.model.ids import TaskId
from headrace.spark import wire_format
from headrace.spark.exchange import Delivery, Exchange
from headrace.spark.job import Job
from headrace.spark.slot_messages import AbortBatch, BatchBroken, BatchDone, RunBatch, SlotRows
from headrace.spark.slot_runner import SlotRunner
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


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

    def hold(self, task: TaskId, process: Process) -> MemoryEngineProvider:
        """The latest copy that no other living process holds, or a new one."""
        copies = self.copies.setdefault(task, [])
        free = [copy for copy in copies if not copy[1] or copy[1][0].is_dead]
        if not free:
            free = [(MemoryEngineProvider(), [])]
            copies += free
        provider, holder = max(free, key=lambda copy: -1 if (v := copy[0].open().version) is None else v.number)
        holder[:] = [process]
        return provider

    def release(self, task: TaskId, process: Process) -> None:
        for _, holder in self.copies.get(task, []):
            if holder == [process]:
                holder.clear()


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
        if task not in self._held:
            self._held[task] = _Held(self._host.hold(task, self._process))
        return self._held[task]

    def release(self, task: TaskId) -> None:
        if self._held.pop(task, None) is not None:
            self._host.release(task, self._process)

    def close(self) -> None:
        for task in list(self._held):
            self.release(task)


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
        self._runner: SlotRunner | None = None
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
        self._runner = SlotRunner(self._job, copies, storage=storage, log=log)
        process.start("heartbeat", self._beat)
        self._tell("ready")
        while True:
            self._changed.wait_for(lambda: self._inbox)
            message = self._inbox.pop(0)
            if isinstance(message, RunBatch):
                self._run(self._runner, message)
            else:
                places, self.peers = message
                self._runner.take_places(places, self.number, {}, [self.number])

    def _beat(self) -> None:
        while True:
            self.process.sleep(1.0)
            self._tell("alive")

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
