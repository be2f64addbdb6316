"""The driver's side of the slots: submits their Spark jobs, registers them, and talks to them.

A slot is a Spark job of its own, with one task. One job for all slots would fix their number, and Spark counts the
failures of a job's tasks over its whole life. The job of a slot that ended is submitted again, after a backoff; the
job of a slot whose lease has expired is cancelled, because to Spark a hung slot is running.

`SlotGroup` decides; this module has the sockets, the threads and the clock.
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
from typing import Any

from pyspark import InheritableThread, SparkContext

from headrace.errors import ConfigError, StreamsError
from headrace.model.ids import TaskId
from headrace.query.status import SlotReport, Traffic
from headrace.spark.placement import Messages, Placement, SlotGroup
from headrace.spark.session import SLOTS
from headrace.spark.slot import CANNOT_START, DriverAddress, digest_of_job, slot_function
from headrace.spark.slot_messages import (
    AtRecord,
    BatchBroken,
    BatchDone,
    CheckPeers,
    Heartbeat,
    Hello,
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
from headrace.spark.slot_registry import Registration
from headrace.spark.transport import Connection, Endpoint, Frame

_log = logging.getLogger(__name__)
TICK = 0.1  # seconds between two looks at leases and jobs
STANDSTILL = 1.0  # seconds between two looks after which the driver counts as suspended meanwhile
STOP = 5.0  # seconds that slots have to end before their jobs are cancelled
CORE_WAIT = 5.0  # seconds after which Spark is asked whether a slot without a process has a core
CORE_CHECK, CORE_WARNING = 1.0, 60.0  # seconds between two such questions, and between two warnings
_held: dict[str, int] = {}  # slots of the applications of this process, which share its SparkContext


def count_held_slots(except_of: str = "") -> int:
    """Returns how many slots the applications of this process have, those of one pool left out."""
    return sum(count for group, count in list(_held.items()) if group != except_of)


class SlotPool:
    """The slots of a running application. `handle(registration, message)` is called in the thread of the endpoint.

    A message of None says that the slot is lost. `replicas` is the number of standbys of each of the `stateful` tasks;
    `last_change` says in which batch the state of a task changed last, `committed` which batch was the last.
    `on_ready` is called when a slot is ready.
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
        committed: int,
        handle: Callable[[Registration, BatchDone | BatchBroken | AtRecord | ShareDelivered | None], None],
        on_ready: Callable[[], None],
    ) -> None:
        self._context, self._application, self._job = context, application, job
        self._handle, self._on_ready = handle, on_ready
        self._group = f"headrace-{application}-{secrets.token_hex(4)}"
        self._changed = threading.Condition()
        self._slots = SlotGroup(lease, Placement(stateful, replicas, last_change), committed)
        self._registry, self._placement = self._slots.registry, self._slots.placement
        self._connections: dict[int, Connection] = {}  # by registration
        self._failed: StreamsError | None = None  # why the application cannot start
        self._is_over = False
        self.wanted = 0  # slots
        self.queued = 0  # slots whose job waits for a core
        self._may_queue = context.getConf().get(SLOTS) is None  # a session that Headrace made has threads for all slots
        self._queue_checked = self._warn_at = 0.0
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
            self.wanted = _held[self._group] = count
            self._registry.want(count)
            self._changed.notify_all()

    @property
    def held_by_others(self) -> int:
        """How many slots other applications of this process have."""
        return count_held_slots(except_of=self._group)

    def lay_out(self, tasks: list[TaskId]) -> Mapping[TaskId, int] | None:
        """Returns which slot runs which task in the next batch, and tells the slots; None while slots are expected.

        Raises an error if slots cannot reach the driver, or each other, when the application starts.
        """
        with self._changed:
            if self._failed is not None:
                raise self._failed
            moves = self.moves
            messages = self._slots.lay_out(tasks, time.monotonic())
            if messages is None:
                return None
            if self.moves > moves:
                _log.info("%d tasks move to other slots; there are %d slots", self.moves - moves, len(self.layout))
            self._send_all(messages)
            return self._placement.places

    def commit(self, number: int) -> None:
        """Tells the slots that a batch is committed: they bring their standbys to it."""
        with self._changed:
            messages = self._slots.commit(number)
        self._send_all(messages)

    def await_slots(self) -> list[int]:
        """Returns the registrations of the live slots; waits until there is one."""
        with self._changed:
            while not self._registry.live and not self._is_over:
                self._changed.wait(TICK)
            return [registration.number for registration in self._registry.live.values()]

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
            live = self._registry.live
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

    def _send_all(self, messages: Messages) -> None:
        for registration, message in messages:
            self.send(registration, message)

    def _received(self, connection: Connection, frame: Frame) -> None:
        message, now = decode_for_driver(frame), time.monotonic()
        if isinstance(message, Hello):
            self._register(connection, message, now)
            return
        registration = connection.peer
        if not isinstance(registration, Registration) or not self.is_live(registration.number):
            return  # the slot was replaced
        with self._changed:
            self._registry.heard(registration.number, now)
        if isinstance(message, LocalState):
            with self._changed:
                self._slots.make_ready(registration.number, message, now)
                self._changed.notify_all()
            self._on_ready()
        elif isinstance(message, Unreachable):
            self._reject(registration, message)
        elif not isinstance(message, Heartbeat):
            self._handle(registration, message)

    def _register(self, connection: Connection, hello: Hello, now: float) -> None:
        with self._changed:
            registration, before = self._slots.register(hello, now)
            if registration is None or self._is_over:
                with suppress(ConnectionError):
                    connection.send(encode_message(Stop()))
                return
            connection.peer = registration
            self._connections[registration.number] = connection
            with suppress(ConnectionError):
                start = Start(registration.number, self._registry.lease, self._job, self._peers_of(registration.slot))
                connection.send(encode_message(start))
            replaced = None if before is None else self._connections.pop(before.number, None)
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
            with self._changed:
                peers = self._peers_of(registration.slot)
            self.send(registration.number, CheckPeers(peers))
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
            lost = self._registry.fail_to_reach(reporter, peer, attempt)
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
            self._slots.lose(registration.number, time.monotonic())
            self._changed.notify_all()
        if connection is not None:
            connection.close()
        self._handle(registration, None)

    # ------------------------------------------------------------------------------------------------------- Spark jobs
    def _keep(self) -> None:
        """Submits jobs, and ends the slots whose lease has expired."""
        looked = time.monotonic()
        while not self._is_over:
            with self._changed:
                now = time.monotonic()
                if now > looked + STANDSTILL:
                    self._registry.extend_leases(now - looked)
                looked = now
                due = self._registry.to_submit(now)
                expired = self._registry.expired(now)
            try:
                for slot in due:
                    self._submit(slot)
            except Exception as error:  # noqa: BLE001 - the JVM is gone: `explain_lost_jvm`
                _log.info("slots are no longer submitted: %s", error)
                return
            with suppress(Exception):  # the JVM may be gone
                self._watch_queue(time.monotonic())
            for registration in expired:
                _log.warning(
                    "slot %d on %s was not heard of for %.0f s: it is replaced",
                    registration.slot, registration.host, self._registry.lease,
                )  # fmt: skip
                self._lose(registration)
                with suppress(Exception):  # the JVM may be gone
                    self._context.cancelJobGroup(self._group_of(registration.slot))
            with self._changed:
                if not self._is_over:
                    self._changed.wait(TICK)

    def _watch_queue(self, now: float) -> None:
        """Counts the slots that wait for a core, and warns of them, at once and then every minute."""
        if not self._may_queue or now < self._queue_checked + CORE_CHECK:
            return
        self._queue_checked = now
        with self._changed:
            unserved, is_idle = self._registry.unserved(now - CORE_WAIT), not self._registry.live
        queued = sum(map(self._is_queued, unserved))
        if queued and now >= self._warn_at:
            self._warn_at = now + CORE_WARNING
            _log.warning(
                "%d of %d slots wait for a core%s: Spark (%s) has none left, because other applications or jobs hold "
                "them. Give those fewer slots (num.stream.threads, slots.free.cores) or end them, or give Spark more "
                "cores or executors",
                queued, self.wanted, ", and no batch can run" if is_idle else "", self._context.master,
            )  # fmt: skip
        elif self.queued and not queued:
            self._warn_at = 0.0
            _log.info("no slot waits for a core any more")
        self.queued = queued

    def _is_queued(self, slot: int) -> bool:
        """True if the job of a slot has no running task."""
        tracker = self._context.statusTracker()
        job: Any = tracker.getJobInfo(max(tracker.getJobIdsForGroup(self._group_of(slot)), default=-1))
        if job is None or job.status != "RUNNING":
            return False
        stages = [tracker.getStageInfo(stage) for stage in job.stageIds]
        return not any(stage is not None and stage.numActiveTasks for stage in stages)

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
            self._registry.end_job(slot, time.monotonic())
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
            if not self._slots.has_started and not self._is_over:
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
        _held.pop(self._group, None)
        self._endpoint.close()
