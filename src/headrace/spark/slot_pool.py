"""The driver's side of the slots: submits their Spark jobs, registers them, and talks to them.

A slot is a Spark job of its own, with one task. One job for all slots would fix their number, and Spark counts the
failures of a job's tasks over its whole life. The job of a slot that ended is submitted again, after a backoff; the
job of a slot whose lease has expired is cancelled, because to Spark a hung slot is running.

`SlotRegistry` and `Placement` decide; this module has the sockets, the threads and the clock.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from pyspark import InheritableThread, SparkContext

from headrace.errors import ConfigError, StreamsError
from headrace.model.ids import TaskId
from headrace.query.status import SlotReport, Traffic
from headrace.spark.placement import Placement
from headrace.spark.slot import CANNOT_START, DriverAddress, digest_of_job, slot_function
from headrace.spark.slot_messages import (
    AtRecord,
    BatchBroken,
    BatchDone,
    CheckPeers,
    Committed,
    Heartbeat,
    Hello,
    Layout,
    LocalState,
    Peer,
    ShareDelivered,
    Start,
    Stop,
    ToSlot,
    Unreachable,
    decode_for_driver,
    encode_message,
)
from headrace.spark.slot_registry import Registration, SlotRegistry
from headrace.spark.transport import Connection, Endpoint, Frame

_log = logging.getLogger(__name__)
TICK = 0.1  # seconds between two looks at leases and jobs
REPLACEMENT = 3.0  # seconds that tasks of a lost slot wait for it to come back, before other slots take them
FIRST_SLOTS = 10.0  # seconds that the first batch waits for all slots, once one is there
STOP = 5.0  # seconds that slots have to end before their jobs are cancelled


class SlotPool:
    """The slots of a running application. `handle(registration, message)` is called in the thread of the endpoint.

    A message of None says that the slot is lost. `replicas` is the number of standbys of each of the `stateful` tasks;
    `last_change` says in which batch the state of a task changed last.
    """

    def __init__(
        self,
        context: SparkContext,
        application: str,
        job: bytes,
        address: DriverAddress,
        *,
        bind: str,
        ports: range | None,
        lease: float,
        replicas: int,
        stateful: Collection[TaskId],
        last_change: Callable[[TaskId], int],
        handle: Callable[[Registration, BatchDone | BatchBroken | AtRecord | ShareDelivered | None], None],
    ) -> None:
        self._context, self._application, self._job, self._handle = context, application, job, handle
        self._group = f"headrace-{application}-{secrets.token_hex(4)}"
        self._changed = threading.Condition()
        self.registry = SlotRegistry(lease)
        self._connections: dict[int, Connection] = {}  # by registration
        self._lost_at = self._first_at = 0.0
        self._placement = Placement(stateful, replicas, last_change)
        self._committed = -1
        self._failed: StreamsError | None = None  # why the application cannot start
        self._is_over = False
        self._jobs: dict[int, threading.Thread] = {}
        try:
            self._endpoint = Endpoint(
                address.secret, self._received, self._closed,
                host=bind, ports=ports, encrypts=address.encrypts, name="headrace driver",
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(f"the driver cannot listen for slots: {error}. Set driver.ports") from error
        self._address = replace(address, port=self._endpoint.port, job=digest_of_job(job))
        self._keeper = threading.Thread(target=self._keep, name="headrace slots", daemon=True)
        self._keeper.start()

    # ----------------------------------------------------------------------------------------------------------- number
    def want(self, count: int) -> None:
        """Sets the number of slots; jobs are submitted and slots drained in the background."""
        with self._changed:
            self.registry.want(count)
            self._changed.notify_all()

    def await_layout(self, tasks: list[TaskId], over: Callable[[], bool]) -> dict[TaskId, int] | None:
        """Returns which slot runs which task in the next batch; waits for expected slots. None when `over()` is true.

        Raises an error if slots cannot reach the driver, or each other, when the application starts.
        """
        with self._changed:
            while not over():
                if self._failed is not None:
                    raise self._failed
                live = self.registry.live
                if self._is_settled(live):
                    return self._lay_out(tasks, live)
                self._changed.wait(TICK)
        return None

    def _is_settled(self, live: Mapping[int, Registration]) -> bool:
        """Whether the next batch can begin with the live slots, without waiting for others."""
        now = time.monotonic()
        if not live:
            return False
        if not self.layout:
            return not self.registry.waiting or now - self._first_at > FIRST_SLOTS
        missing = self.layout.keys() - live.keys()
        expected = missing & set(self.registry.waiting)
        return not expected or now - self._lost_at > REPLACEMENT or self._placement.has_standbys(missing, live)

    def _lay_out(self, tasks: list[TaskId], live: Mapping[int, Registration]) -> dict[TaskId, int]:
        """Assigns the tasks, and tells the slots if something has changed."""
        placement, moves = self._placement, self._placement.moves
        if placement.assign(tasks, live):
            if placement.moves > moves:
                _log.info("%d tasks move to other slots; there are %d slots", placement.moves - moves, len(live))
            peers = [Peer(slot, some.number, some.host, some.port) for slot, some in live.items()]
            places = [(task.subtopology, task.partition, slot) for task, slot in placement.places.items()]
            standbys = [
                (task.subtopology, task.partition, at) for task, some in placement.standbys.items() for at in some
            ]
            for registration in live.values():
                self.send(registration.number, Layout(peers, places, standbys, self._committed))
            for registration in self.registry.unwanted:
                self.send(registration.number, Stop())
        return placement.places

    def commit(self, number: int) -> None:
        """Tells the slots that a batch is committed: they bring their standbys to it."""
        self._committed = number
        with self._changed:
            self.registry.reach_all()
        if any(self._placement.standbys.values()):
            for registration in self.layout.values():
                self.send(registration, Committed(number))

    def await_slots(self) -> list[int]:
        """Returns the registrations of the live slots; waits until there is one."""
        with self._changed:
            while not self.registry.live and not self._is_over:
                self._changed.wait(TICK)
            return [registration.number for registration in self.registry.live.values()]

    @property
    def layout(self) -> dict[int, int]:
        """The registrations of the slots that take part in batches, by slot."""
        return self._placement.layout

    @property
    def moves(self) -> int:
        """How many tasks were given to other slots since the start."""
        return self._placement.moves

    def report(self) -> list[SlotReport]:
        """The live slots, with the tasks that they run, and their standbys."""
        with self._changed:
            live = self.registry.live
            tasks = {slot: self._placement.tasks_of(slot) for slot in live}
            standbys = {slot: self._placement.standbys_of(some) for slot, some in live.items()}
        return [
            SlotReport(
                slot,
                some.host,
                some.process,
                tuple(map(str, tasks[slot])),
                {str(task): behind for task, behind in standbys[slot].items()},
            )
            for slot, some in live.items()
        ]

    @property
    def traffic(self) -> Traffic:
        """The frames and bytes between the driver and its slots so far."""
        return Traffic(*self._endpoint.traffic.total)

    def is_live(self, registration: int) -> bool:
        return registration in self._connections

    # --------------------------------------------------------------------------------------------------------- messages
    def send(self, registration: int, message: ToSlot) -> None:
        """Sends a message to a slot; does nothing if the slot is gone, because its loss is reported separately."""
        connection = self._connections.get(registration)
        if connection is not None:
            with suppress(ConnectionError):
                connection.send(encode_message(message))

    def _received(self, connection: Connection, frame: Frame) -> None:
        message, now = decode_for_driver(frame), time.monotonic()
        if isinstance(message, Hello):
            self._register(connection, message, now)
            return
        registration = connection.peer
        if not isinstance(registration, Registration) or not self.is_live(registration.number):
            return  # the slot was replaced
        self.registry.heard(registration.number, now)
        if isinstance(message, LocalState):
            with self._changed:
                found = {TaskId(stage, partition): number for stage, partition, number in message.copies}
                self._placement.add_copies(registration.number, found)
                self._first_at = self._first_at or now
                self.registry.make_ready(registration.number)
                self._changed.notify_all()
        elif isinstance(message, Unreachable):
            self._reject(registration, message)
        elif not isinstance(message, Heartbeat):
            self._handle(registration, message)

    def _register(self, connection: Connection, hello: Hello, now: float) -> None:
        with self._changed:
            before = self.registry.registered(hello.slot)
            registration = self.registry.register(hello.slot, hello.host, hello.port, hello.process, now)
            if registration is None or self._is_over:
                with suppress(ConnectionError):
                    connection.send(encode_message(Stop()))
                return
            connection.peer = registration
            self._connections[registration.number] = connection
            with suppress(ConnectionError):
                start = Start(registration.number, self.registry.lease, self._job, self._peers_of(registration.slot))
                connection.send(encode_message(start))
            replaced = None if before is None else self._connections.pop(before.number, None)
            if before is not None:
                self._placement.forget_copies(before.number)
            self._changed.notify_all()
        if before is not None and replaced is not None:
            replaced.close()
            self._handle(before, None)

    def _peers_of(self, slot: int) -> list[Peer]:
        others = [connection.peer for connection in self._connections.values()]
        return [
            Peer(some.slot, some.number, some.host, some.port)
            for some in others
            if isinstance(some, Registration) and some.slot != slot
        ]

    def _reject(self, registration: Registration, message: Unreachable) -> None:
        """Replaces a new slot that does not reach another slot; fails the start if there is no layout yet."""
        if not self.is_live(message.registration):  # the other slot is gone
            self.send(registration.number, CheckPeers(self._peers_of(registration.slot)))
            return
        with self._changed:
            if not self.layout:
                self._failed = StreamsError(
                    f"{message.reason}. Slots connect to each other: set slot.bind.address to an address that the "
                    "other hosts reach, and open the ports slot.ports between them"
                )
                self._changed.notify_all()
                return
        _log.warning("slot %d is submitted again: %s", registration.slot, message.reason)
        self._replace(registration)

    def replace_unreached(self, reporter: int, peer: int, attempt: int) -> None:
        """Records that a slot could not send rows to another; after two attempts in a row, replaces one of the two."""
        with self._changed:
            lost = self.registry.fail_to_reach(reporter, peer, attempt)
        if lost is not None:
            _log.warning("slot %d on %s is replaced: it and another slot do not reach each other", lost.slot, lost.host)
            self._replace(lost)

    def _replace(self, registration: Registration) -> None:
        self._lose(registration)
        # Not in the thread of the endpoint, which must not wait for Spark.
        group = self._group_of(registration.slot)
        InheritableThread(
            target=self._context.cancelJobGroup, args=(group,), name="headrace cancel", daemon=True
        ).start()

    def _closed(self, connection: Connection) -> None:
        registration = connection.peer
        if isinstance(registration, Registration) and self._connections.get(registration.number) is connection:
            self._lose(registration)

    def _lose(self, registration: Registration) -> None:
        with self._changed:
            connection = self._connections.pop(registration.number, None)
            self._placement.forget_copies(registration.number)
            self.registry.lose(registration.number, time.monotonic())
            self._lost_at = time.monotonic()
            self._changed.notify_all()
        if connection is not None:
            connection.close()
        self._handle(registration, None)

    # ------------------------------------------------------------------------------------------------------- Spark jobs
    def _keep(self) -> None:
        """Submits jobs, and ends the slots whose lease has expired."""
        while not self._is_over:
            with self._changed:
                due = self.registry.to_submit(time.monotonic())
                expired = self.registry.expired(time.monotonic())
            try:
                for slot in due:
                    self._submit(slot)
            except Exception as error:  # noqa: BLE001 - the JVM is gone: `explain_lost_jvm`
                _log.info("slots are no longer submitted: %s", error)
                return
            for registration in expired:
                _log.warning(
                    "slot %d on %s was not heard of for %.0f s: it is replaced",
                    registration.slot, registration.host, self.registry.lease,
                )  # fmt: skip
                self._lose(registration)
                with suppress(Exception):  # the JVM may be gone
                    self._context.cancelJobGroup(self._group_of(registration.slot))
            with self._changed:
                if not self._is_over:
                    self._changed.wait(TICK)

    def _submit(self, slot: int) -> None:
        thread = InheritableThread(target=self._run_job, args=(slot,), name=f"headrace slot {slot}", daemon=True)
        self._jobs[slot] = thread
        thread.start()

    def _run_job(self, slot: int) -> None:
        context = self._context
        try:
            context.setJobGroup(
                self._group_of(slot), f"headrace {self._application}: slot {slot}", interruptOnCancel=True
            )
            context.parallelize([slot], 1).mapPartitions(slot_function(self._address)).collect()
        except Exception as error:  # noqa: BLE001 - the slot is submitted again
            self._note_end(slot, str(error))
        with self._changed:
            self.registry.end_job(slot, time.monotonic())
            self._changed.notify_all()

    def _note_end(self, slot: int, error: str) -> None:
        """Logs why the job of a slot has failed, after all attempts. Fails the start if no slot was ever ready."""
        found = re.search(rf"{CANNOT_START}.*", error)
        reason = found[0].strip() if found else error.partition("\n")[0]
        if "No module named 'headrace'" in error:
            reason = (
                f"Headrace is not installed in the Python of Spark's executors ({self._context.pythonExec}). Install "
                "the same version there, set spark.pyspark.python to a Python that has it, or ship an environment "
                "with --archives"
            )
        with self._changed:
            if not self._first_at and not self._is_over:
                self._failed = StreamsError(reason)
                self._changed.notify_all()
        if not self._is_over:
            _log.info("slot %d has ended: %s", slot, reason)

    def _group_of(self, slot: int) -> str:
        return f"{self._group}-{slot}"

    # -------------------------------------------------------------------------------------------------------------- end
    def close(self) -> None:
        """Ends all slots: they are told to, and after five seconds their jobs are cancelled."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._keeper.join()
        for registration in list(self._connections):
            self.send(registration, Stop())
        end = time.monotonic() + STOP
        for thread in self._jobs.values():
            thread.join(max(0.0, end - time.monotonic()))
        for slot, thread in self._jobs.items():
            if thread.is_alive():
                with suppress(Exception):  # the JVM may be gone
                    self._context.cancelJobGroup(self._group_of(slot))
        for thread in self._jobs.values():
            thread.join(STOP)
        self._endpoint.close()
