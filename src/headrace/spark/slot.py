"""A slot: a process that runs tasks from batch to batch, inside a Spark task that does not end.

The driver submits a Spark job with one task for every slot (`slot_pool`). That task makes a `Slot`, which connects to
the driver and runs the batches that the driver orders, in the main thread. Meanwhile the thread of the endpoint
receives rows of other slots, another thread sends heartbeats, and others deliver shares of large batches.

A slot ends when the driver tells it to, or when its connection to the driver is closed: then the driver is gone, or has
replaced the slot. A replaced slot must not touch anything that its successor may use, so the slot ends at once,
whatever it is doing.
"""

from __future__ import annotations

import gc
import os
import queue
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from ipaddress import ip_address
from typing import Any

from pyspark import cloudpickle

from headrace.checkpoint.local_copies import LocalCopies
from headrace.errors import InvalidStateStoreError, StreamsError, UnsafePathError, add_summary, summarize
from headrace.model.ids import TaskId
from headrace.runtime.failures import Place
from headrace.spark import wire_format
from headrace.spark.delivery_job import ShareWriter
from headrace.spark.exchange import Delivery, Exchange
from headrace.spark.job import Job
from headrace.spark.record_watch import CallTimeout
from headrace.spark.slot_messages import (
    AbortBatch,
    AtRecord,
    BatchBroken,
    BatchDone,
    CheckPeers,
    Committed,
    DeliverShare,
    Heartbeat,
    Hello,
    Introduction,
    Layout,
    LocalState,
    Peer,
    Probe,
    ProbeAnswer,
    RunBatch,
    ShareDelivered,
    SlotRows,
    Start,
    Stop,
    ToDriver,
    Unreachable,
    decode_for_slot,
    encode_message,
)
from headrace.spark.slot_process import outlive_sigterm, prepare_log
from headrace.spark.slot_runner import SlotRunner, collect_garbage, defer_garbage_collection, limit_calls
from headrace.spark.standbys import LocalStateKeeper
from headrace.spark.transport import Connection, Endpoint, Frame, port_range

MAX_ROWS_IN_MEMORY = 256 << 20  # bytes of rows of other slots; more go to a temporary file
MAX_FRAME_BYTES = 4 << 20  # of rows in one frame, so that a receiver need not hold more at once
UNREACHABLE = 2.0  # seconds to connect to another slot
PROBE = 5.0  # the same at the start, when hosts are busy and no attempt is repeated; shorter than `FIRST_SLOTS`
CANNOT_START = "a slot cannot start"  # begins the error of a Spark job whose slot did not reach the driver
WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - these are not addresses that another host could connect to


ForMainThread = Start | CheckPeers | Layout | Committed | RunBatch | DeliverShare | Stop


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Where the driver is reached, and how a slot listens. Spark brings it to the slots."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    bind: str  # the address that slots bind to; "" is the one by which they reach the driver
    encrypts: bool  # whether frames are encrypted
    ports: tuple[int, int] | None  # the first and the last port that slots may listen on
    job: bytes = b""  # the digest of the job that the driver sends


def digest_of_job(job: bytes) -> bytes:
    """The digest that a slot compares before it unpickles a job. Spark brings it, so a changed frame is detected."""
    return sha256(job).digest()


def slot_function(driver: DriverAddress) -> Any:
    """Returns the function that Spark runs in a Python worker, on a partition that holds the number of the slot."""
    return partial(_serve_partition, driver)


def _serve_partition(driver: DriverAddress, slots: Iterable[int]) -> Iterator[int]:
    outlive_sigterm()
    prepare_log()
    for number in slots:
        try:
            slot = Slot(driver, number)
        except (OSError, StreamsError) as error:
            raise cannot_start(error) from error
        slot.serve()
    return iter(())


def cannot_start(error: Exception) -> ConnectionError:
    """Returns the error of the Spark job that makes the driver raise `error`, if no slot can start."""
    return ConnectionError(f"{CANNOT_START} on {socket.gethostname()}: {error}")


class Slot:
    """One slot, in this process."""

    def __init__(self, driver: DriverAddress, number: int) -> None:
        self._number, self._registration, self._job_digest = number, 0, driver.job
        self._inbox: queue.SimpleQueue[ForMainThread] = queue.SimpleQueue()
        self._arrived = threading.Condition()
        self._exchange = Exchange(MAX_ROWS_IN_MEMORY, partial(tempfile.TemporaryFile, prefix="headrace-rows-"))
        self._peers: dict[int, Peer] = {}
        self._connections: dict[int, Connection] = {}  # to other slots, opened by this one
        self._runner: SlotRunner | None = None
        self._job: Job | None = None
        self._keeper: LocalStateKeeper | None = None
        self._timeout: CallTimeout | None = None
        self._shares: dict[str, queue.SimpleQueue[DeliverShare]] = {}  # by sink; "" for the log
        self._is_over = False
        mine = choose_address(os.environ.get("SPARK_LOCAL_IP", ""), address_towards(driver.host, driver.port))
        self._host = host = mine if driver.bind in WILDCARDS else driver.bind or mine
        self._last_batch: tuple[int, frozenset[int]] = 0, frozenset()  # the attempt, and the slots that take part
        self._probes: dict[Connection, queue.SimpleQueue[str]] = {}  # the answers of slots that were probed
        ports = port_range(driver.ports)
        self._endpoint = Endpoint(
            driver.secret, self._received, self._closed,
            host=driver.bind or mine, ports=ports, encrypts=driver.encrypts, name="headrace slot",
        )  # fmt: skip
        try:
            self._driver = self._endpoint.connect(driver.host, driver.port)
        except ConnectionError as error:
            self._endpoint.close()
            raise ConnectionError(
                f"the driver at {driver.host}:{driver.port} cannot be reached from {mine}: {error}. Set "
                "driver.advertised.address to an address of the driver that executors reach, and open the ports "
                "driver.ports for them"
            ) from error
        self._driver.peer = "the driver"
        self._send(Hello(number, host, self._endpoint.port, os.getpid()))

    # ----------------------------------------------------------------------------------------- in the endpoint's thread
    def _received(self, connection: Connection, frame: Frame) -> None:
        message = decode_for_slot(frame)
        match message:
            case SlotRows():
                with self._arrived:
                    self._exchange.add(Delivery(*_fields(message)))
                    self._arrived.notify_all()
            case Introduction():
                connection.peer = f"slot {message.slot}"
            case Probe():
                # In a thread of its own: connecting would block this one.
                threading.Thread(
                    target=self._answer_probe, args=(connection, message), name="headrace probe", daemon=True
                ).start()
            case ProbeAnswer():
                if connection in self._probes:
                    self._probes[connection].put(message.problem)
            case AbortBatch():
                with self._arrived:
                    self._exchange.abort(message.attempt)
                    self._arrived.notify_all()
            case Layout():
                # At once: the main thread may be sending to a slot that is gone, which would never end.
                self._drop_connections({peer.slot: peer for peer in message.peers})
                self._inbox.put(message)
            case _:
                self._inbox.put(message)

    def _closed(self, connection: Connection) -> None:
        if connection is self._driver and not self._is_over:
            # The driver is gone, or has replaced this slot. User code may be running, and cannot be interrupted.
            os._exit(0)
        if connection in self._probes:
            self._probes[connection].put("it has closed the connection")
        slot = next((slot for slot, some in self._connections.items() if some is connection), None)
        if slot is not None:
            self._connections.pop(slot, None)
            attempt, slots = self._last_batch
            if slot in slots:
                # What was sent may not have arrived, and the other slot would wait for it.
                reason = f"slot {self._number} lost its connection to slot {slot}"
                with suppress(ConnectionError):
                    self._driver.send(encode_message(BatchBroken(attempt, reason, slot)))

    def _answer_probe(self, connection: Connection, probe: Probe) -> None:
        problem = ""
        try:
            self._endpoint.connect(probe.host, probe.port, PROBE).close()
        except ConnectionError as error:
            problem = f"from there {error}"
        with suppress(ConnectionError):
            connection.send(encode_message(ProbeAnswer(problem)))

    def _drop_connections(self, peers: dict[int, Peer]) -> None:
        for slot, connection in list(self._connections.items()):
            if peers.get(slot) != self._peers.get(slot):
                connection.close()
                self._connections.pop(slot, None)

    # ----------------------------------------------------------------------------------------------- in the main thread
    def serve(self) -> None:
        """Handles the messages of the driver until `Stop`."""
        try:
            while True:
                message = self._inbox.get()
                match message:
                    case Start() | CheckPeers():
                        try:
                            self._start(message) if isinstance(message, Start) else self._check_peers(message.peers)
                        except (UnsafePathError, InvalidStateStoreError) as error:  # state.dir cannot be used here
                            raise cannot_start(error) from error
                    case Layout():
                        self._take_layout(message)
                    case Committed():
                        self._keep().commit(message.number)
                    case RunBatch():
                        self._run(message)
                        collect_garbage()
                    case DeliverShare():
                        self._deliver(message)
                    case Stop():
                        return
        finally:
            self._is_over = True
            for part in (self._timeout, self._keeper, self._runner, self._endpoint):
                if part is not None:
                    part.close()

    def _start(self, message: Start) -> None:
        self._registration = message.registration
        threading.Thread(target=self._beat, args=(message.lease / 4,), name="headrace heartbeat", daemon=True).start()
        defer_garbage_collection()
        if digest_of_job(message.job) != self._job_digest:
            raise StreamsError("the job that arrived is not the one that the driver has announced: is it another's?")
        job: Job = cloudpickle.loads(message.job)
        self._job, self._runner = job, SlotRunner(job, LocalCopies(job.local_state, job.checkpoint_id))
        delay = job.config.state_cleanup_delay_ms / 1000
        self._keeper = LocalStateKeeper(self._runner.standbys, self._runner.copies, delay, self._tell_copies)
        self._timeout = self._runner.timeout = limit_calls(job, self._give_up)
        gc.collect()
        gc.freeze()  # these objects live as long as the slot
        self._check_peers(message.peers)

    def _check_peers(self, peers: Iterable[Peer]) -> None:
        """Tells the driver that the slot is ready, or which other slot it does not reach, or is not reached by."""
        for peer in peers:
            problem = self._probe(peer)
            if problem:
                here = f"slot {self._number} at {self._host}:{self._endpoint.port}"
                there = f"slot {peer.slot} at {peer.host}:{peer.port}"
                self._send(Unreachable(peer.registration, f"{here} and {there} do not reach each other: {problem}"))
                return
        self._tell_copies(self._running().copies.list_free())

    def _probe(self, peer: Peer) -> str:
        """Connects to another slot, and has it connect to this one; returns what went wrong."""
        try:
            connection = self._endpoint.connect(peer.host, peer.port, PROBE)
        except ConnectionError as error:
            return str(error)
        self._probes[connection] = queue.SimpleQueue()
        try:
            connection.send(encode_message(Introduction(self._number, self._registration)))
            connection.send(encode_message(Probe(self._host, self._endpoint.port)))
            return self._probes[connection].get(timeout=2 * PROBE)
        except (ConnectionError, queue.Empty) as error:
            return f"no answer within {2 * PROBE:.0f} s {error}".strip()
        finally:
            del self._probes[connection]
            connection.close()

    def _tell_copies(self, numbers: Mapping[TaskId, int]) -> None:
        with suppress(ConnectionError):  # the driver is gone: the endpoint's thread ends the process
            copies = [(task.subtopology, task.partition, number) for task, number in numbers.items()]
            self._driver.send(encode_message(LocalState(copies)))

    def _take_layout(self, layout: Layout) -> None:
        self._peers = {peer.slot: peer for peer in layout.peers}
        here = {peer.slot for peer in layout.peers if peer.host == self._host}
        self._running().take_places(layout.place_tasks(), self._number, layout.place_standbys(), here)
        self._keep().commit(layout.committed)

    def _beat(self, every: float) -> None:
        never = threading.Event()
        while not never.wait(every) and not self._is_over:
            try:
                self._driver.send(encode_message(Heartbeat()))
            except ConnectionError:
                return

    def _keep(self) -> LocalStateKeeper:
        assert self._keeper is not None  # noqa: S101 - the driver sends `Start` first
        return self._keeper

    def _running(self) -> SlotRunner:
        assert self._runner is not None  # noqa: S101 - the driver sends `Start` first
        return self._runner

    # ---------------------------------------------------------------------------------------------------------- a batch
    def _run(self, batch: RunBatch) -> None:
        with self._arrived:
            if batch.attempt < self._exchange.attempt:
                return  # it was aborted before it began
            self._exchange.begin(batch.attempt, set(batch.slots))
        self._last_batch = batch.attempt, frozenset(batch.slots)
        watch = self._running().watch
        watch.report = partial(self._report, batch.attempt) if batch.is_watched else None
        watch.suspects = dict(batch.suspects)
        results: list[bytes] = []
        took: list[float] = []
        waited: list[float] = []
        try:
            for level, orders in enumerate(batch.levels):
                began = time.perf_counter()
                rows = self._rows_for(batch.attempt, level)
                if rows is None:
                    return
                ready = time.perf_counter()
                messages = self._running().handle(orders, rows) if orders else []
                self._send_rows(batch, level, messages, results)
                waited.append(1000 * (ready - began))
                took.append(1000 * (time.perf_counter() - ready))
        except PeerLostError as error:
            self._send(BatchBroken(batch.attempt, str(error), error.slot))
        except StreamsError as error:  # a retriable one: others are among the messages
            self._send(BatchBroken(batch.attempt, str(error), None))
        except Exception as error:  # noqa: BLE001 - the driver logs the first line: the message may quote a record
            add_summary(error)
            self._send(BatchBroken(batch.attempt, f"{summarize(error)}\n{traceback.format_exc()}", None))
        else:
            self._send(BatchDone(batch.attempt, results, took, waited))

    def _report(self, attempt: int, place: Place) -> None:
        self._send(AtRecord(attempt, place))

    def _give_up(self, place: Place, reason: str) -> None:
        """Tells the driver which call of a user's function does not return, and ends the slot."""
        with suppress(ConnectionError):
            self._driver.send(encode_message(AtRecord(self._last_batch[0], place, reason)))
        os._exit(1)

    def _rows_for(self, attempt: int, level: int) -> list[bytes] | None:
        """Waits until a level may begin, and returns the rows for it; None if the attempt was aborted."""
        with self._arrived:
            while self._exchange.attempt == attempt and not self._exchange.is_ready(level):
                self._arrived.wait()
            return self._exchange.take(level) if self._exchange.attempt == attempt else None

    def _send_rows(
        self, batch: RunBatch, level: int, messages: Iterable[tuple[int, bytes]], results: list[bytes]
    ) -> None:
        """Sends the rows of a level to the slots of their tasks; adds all other messages to `results`."""
        by_slot, others = wire_format.split_results(messages, batch.slots)
        results += others
        if level + 1 == len(batch.levels):
            return
        for slot, rows in by_slot.items():
            if slot == self._number:
                with self._arrived:
                    self._exchange.add(Delivery(batch.attempt, slot, level, is_end=True, rows=rows))
            else:
                self._send_to_peer(slot, batch.attempt, level, rows)

    def _send_to_peer(self, slot: int, attempt: int, level: int, rows: list[tuple[int, bytes]]) -> None:
        connection = self._connection(slot)
        frame: list[tuple[int, bytes]] = []
        size = 0
        try:
            for target, raw in rows:
                if frame and size + len(raw) > MAX_FRAME_BYTES:
                    connection.send(encode_message(SlotRows(attempt, self._number, level, False, frame)))
                    frame, size = [], 0
                frame.append((target, raw))
                size += len(raw)
            connection.send(encode_message(SlotRows(attempt, self._number, level, True, frame)))
        except ConnectionError as error:
            self._connections.pop(slot, None)
            raise PeerLostError(slot, f"slot {self._number} lost its connection to slot {slot}: {error}") from error

    def _connection(self, slot: int) -> Connection:
        connection = self._connections.get(slot)
        if connection is None:
            peer = self._peers[slot]
            try:
                connection = self._endpoint.connect(peer.host, peer.port, UNREACHABLE)
                connection.send(encode_message(Introduction(self._number, self._registration)))
            except ConnectionError as error:
                raise PeerLostError(
                    slot, f"slot {self._number} cannot reach slot {slot} at {peer.host}:{peer.port}: {error}"
                ) from error
            connection.peer = f"slot {slot}"
            self._connections[slot] = connection
        return connection

    def _send(self, message: ToDriver) -> None:
        try:
            self._driver.send(encode_message(message))
        except ConnectionError:
            self._is_over = True
            sys.exit(0)

    # ----------------------------------------------------------------------------------------------------------- shares
    def _deliver(self, message: DeliverShare) -> None:
        """Queues a share for the thread of the log or of its sink: a target that hangs does not delay the others."""
        order = wire_format.decode(message.order)
        target = order.sink if isinstance(order, wire_format.SinkOrder) else ""
        if target not in self._shares:
            self._shares[target] = queue.SimpleQueue()
            threading.Thread(
                target=self._deliver_shares, args=(self._shares[target],), name="headrace shares", daemon=True
            ).start()
        self._shares[target].put(message)

    def _deliver_shares(self, shares: queue.SimpleQueue[DeliverShare]) -> None:
        assert self._job is not None  # noqa: S101
        writer = ShareWriter(self._job)
        while True:
            message = shares.get()
            order = wire_format.decode(message.order)
            assert isinstance(order, wire_format.ShareOrder | wire_format.SinkOrder)  # noqa: S101
            try:
                ((_, answer),) = writer.handle(message.order, [])
                reason = summary = ""
            except Exception as error:  # noqa: BLE001 - the driver tries again
                answer, reason, summary = b"", f"{type(error).__name__}: {error}", summarize(error)
            self._send(ShareDelivered(message.round, order.share, answer, reason, summary))


class PeerLostError(StreamsError):
    """Another slot could not be reached."""

    def __init__(self, slot: int, message: str) -> None:
        super().__init__(message)
        self.slot = slot


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which the driver is reached."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # no packet is sent
        return probe.getsockname()[0]


def choose_address(given: str, found: str) -> str:
    """The address at which other hosts reach this machine: the one that Spark is given (SPARK_LOCAL_IP), else `found`.

    A loopback address is of use only if `found` is one, too.

    >>> choose_address("10.0.0.5", "192.168.0.5"), choose_address("", "192.168.0.5")
    ('10.0.0.5', '192.168.0.5')
    >>> choose_address("127.0.0.2", "192.168.0.5"), choose_address("127.0.0.2", "127.0.0.1")
    ('192.168.0.5', '127.0.0.2')
    """
    try:
        is_useful = not ip_address(given).is_loopback or ip_address(found).is_loopback
    except ValueError:
        return found
    return given if is_useful else found


def _fields(message: SlotRows) -> tuple[int, int, int, bool, list[tuple[int, bytes]]]:
    return message.attempt, message.slot, message.level, message.is_end, message.rows
