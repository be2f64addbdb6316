"""The real-time trigger: batches run in slots that stay alive, and no Spark job is started for them.

    plan ─▶ orders to all slots ─▶ results of all slots ─▶ manifest ─▶ delivery, while the next batch runs

A batch begins when records have arrived and the previous batch is committed; if `commit.interval.ms` is set, at most
once in this interval. A batch whose slots are lost is planned again: without a manifest it never happened.
"""

from __future__ import annotations

import itertools
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext

from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.steps import RANGES_PLANNED, step
from headrace.errors import StageRerunError, StreamsError
from headrace.log.open import open_log
from headrace.model.clock import SystemClock
from headrace.model.ids import TaskId
from headrace.query.status import encode_slots
from headrace.runtime.failures import Place
from headrace.secrets import is_secret
from headrace.spark import wire_format
from headrace.spark.application_state import QueryStoppedError
from headrace.spark.batch_attempt import BatchAttempt
from headrace.spark.batch_commits import BatchCommits
from headrace.spark.batch_planner import Control, Ends, Planner, plan_orders, shortest_interval
from headrace.spark.delivery_job import DeliveryOrder, SharedDelivery, read_share_answer
from headrace.spark.job import Job, is_local, pickle_job
from headrace.spark.record_watch import KILLED
from headrace.spark.session import find_slots
from headrace.spark.slot import DriverAddress
from headrace.spark.slot_messages import (
    AbortBatch,
    AtRecord,
    BatchBroken,
    BatchDone,
    DeliverShare,
    RunBatch,
    ShareDelivered,
)
from headrace.spark.slot_pool import SlotPool
from headrace.spark.slot_registry import Registration
from headrace.spark.stats import ApplicationStats
from headrace.spark.transport import port_range

_log = logging.getLogger(__name__)
GRACE = 8.0  # seconds that a running batch has to end, when the application is stopped
MAX_LOSSES = 2  # lost slots in one batch, before slots must report every call of a node
MAX_ATTEMPTS = 8  # at one batch, before the application starts again
TICK = 0.1  # seconds
LOOK = 2.0  # seconds between two looks at how many cores Spark has


class RealTimeEngine:
    """Plans batches and commits them, in a thread of its own."""

    def __init__(
        self,
        context: SparkContext,
        job: Job,
        coordinator: Coordinator,
        totals: ApplicationStats,
        *,
        paused: bool = False,
    ) -> None:
        self._job, self._coordinator, self._paused = job, coordinator, paused
        self._commits = BatchCommits(job, coordinator, totals)
        self._changed = threading.Condition()
        self._failed: Exception | None = None
        self._is_stopping = self._is_cut = False
        self.is_ready = False  # True once the slots are there
        self._attempt: BatchAttempt | None = None
        self._attempts = 0
        self._share_rounds = itertools.count(1)
        self._share_answers: dict[int, queue.SimpleQueue[ShareDelivered]] = {}  # by round
        exposed = find_exposed_secrets(job.config.client_settings, is_cluster=not is_local(context))
        if exposed and not encrypts_rpc(context):
            _log.warning(
                "%s go to the slots of the cluster unencrypted, as part of the application: set "
                "spark.network.crypto.enabled, unless you trust the network between its hosts",
                ", ".join(exposed),
            )
        self._pool = SlotPool(
            context,
            job.application,
            pickle_job(context, job),
            driver_address(context, job),
            bind=job.config.driver_bind_address or ("127.0.0.1" if is_local(context) else "0.0.0.0"),  # noqa: S104
            ports=port_range(job.config.driver_ports),
            lease=job.config.slot_lease_ms / 1000,
            replicas=job.config.num_standby_replicas,
            stateful=[task for task in job.all_tasks() if job.stores_of(task.subtopology)],
            last_change=self._last_change,
            handle=self._handle,
        )
        self._context, self._looked = context, time.monotonic()
        self._scaled_to: int | None = None  # by `scale`
        self._pool.commit(coordinator.ledger.number)
        self._pool.want(job.slots)
        self.shares = SharedDelivery(job, lambda: job.slots, self._deliver_shares)
        self._thread = threading.Thread(target=self._run, name="headrace batches", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------------------------- what slots say (endpoint)
    def _handle(
        self, registration: Registration, message: BatchDone | BatchBroken | AtRecord | ShareDelivered | None
    ) -> None:
        if isinstance(message, ShareDelivered):
            answers = self._share_answers.get(message.round)
            if answers is not None:  # else the round has ended
                answers.put(message)
            return
        unreached: tuple[int | None, int] = None, 0
        with self._changed:
            attempt = self._attempt
            if attempt is not None:
                match message:
                    case BatchDone():
                        attempt.finish(registration.number, message)
                    case BatchBroken():
                        attempt.fail(registration.number, message)
                        unreached = message.peer, message.attempt
                    case AtRecord():
                        attempt.report(registration.number, message)
                    case None:
                        attempt.lose(registration.number)
                if attempt.is_over:
                    self._changed.notify_all()
        peer, number = unreached
        if peer is not None:
            self._pool.replace_unreached(registration.number, peer, number)

    # ---------------------------------------------------------------------------------------------------------- batches
    def _run(self) -> None:
        log = open_log(self._job.log, self._job.config.client_settings)
        try:
            planner = Planner(self._job, log)
            begin = 0.0  # the earliest time of the next batch
            while not self._is_stopping:
                if self._is_held_back(begin):
                    continue
                if self._pool.await_layout(self._job.all_tasks(), lambda: self._is_stopping) is None:
                    return
                self.is_ready = True
                began, control = time.perf_counter(), self._commits.control()
                clock = SystemClock().now()
                with planning():
                    ends = planner.plan_ends(control)
                    if not ends and not planner.must_run(control, clock):
                        planner.wait(control)
                        continue
                begin = time.monotonic() + shortest_interval(self._job)
                self._run_batch(planner, control, clock, ends, began)
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._failed = error
        finally:
            log.close()
            with self._changed:
                self._changed.notify_all()

    def _is_held_back(self, begin: float) -> bool:
        """True, after a short wait, if no batch may begin now."""
        with self._changed:
            left = 0.0 if self._commits.commit_requested else begin - time.monotonic()
            if self._paused or left > 0:
                self._changed.wait(min(left, TICK) if not self._paused else TICK)
                return True
        return False

    def _run_batch(self, planner: Planner, control: Control, clock: int, ends: Sequence[Ends], began: float) -> None:
        """Runs the batch, in as many attempts as it takes, and commits it."""
        number, job = control.number + 1, self._job
        losses, suspects, reason = 0, dict[Place, str](), ""
        for failures in range(1, MAX_ATTEMPTS + 1):
            with step(RANGES_PLANNED, job.at_step):
                planner.mark_planned(control)
            places = self._pool.await_layout(job.all_tasks(), lambda: self._is_stopping)
            if places is None:
                return
            planned = time.perf_counter()
            orders = plan_orders(job, control, number, clock, ends, places.__getitem__)
            attempt = self._begin(orders, suspects, is_watched=losses >= MAX_LOSSES or bool(suspects))
            with self._changed:
                while not attempt.is_over and not self._is_cut:
                    self._changed.wait(TICK)
                self._attempt = None
            ran = time.perf_counter()
            if self._is_cut:
                return
            try:
                if attempt.broken is None:
                    self._commit(number, clock, attempt)
                    phases = {f"level {level}": took for level, took in enumerate(attempt.level_times)}
                    self._commits.record_phases(
                        number,
                        plan=1000 * (planned - began),
                        run=1000 * (ran - planned),
                        exchange=attempt.exchange_time,
                        commit=1000 * (time.perf_counter() - ran),
                        **(phases if len(phases) > 1 else {}),
                    )
                    return
                reason = attempt.broken
            except StageRerunError as error:
                reason = str(error)
            _log.info("batch %d is planned again: %s", number, reason.strip().rpartition("\n")[2])
            self._abort(attempt)
            losses += attempt.is_lost
            if attempt.suspect is not None:
                place, reason = attempt.suspect.place, attempt.suspect.reason or KILLED.format(count=losses)
                _log.warning("slot lost in batch %d: %s: %s", number, place, reason)
                suspects[place] = reason
            self._pause_after(failures)
            control = self._commits.control()
            with planning():
                ends = planner.plan_ends(control)
        raise QueryStoppedError(f"batch {number} could not be run in {MAX_ATTEMPTS} attempts: {reason}")

    def _begin(
        self, orders: dict[tuple[int, int], bytes], suspects: Mapping[Place, str], *, is_watched: bool
    ) -> BatchAttempt:
        """Sends the orders of a batch to the slots that take part in it."""
        layout, levels = self._pool.layout, range(len(self._job.plan.levels))
        slots = {slot: layout[slot] for slot in sorted({slot for _, slot in orders})}
        self._attempts += 1
        attempt = BatchAttempt(self._attempts, slots)
        with self._changed:
            self._attempt = attempt
        for slot, registration in slots.items():
            given = [orders.get((level, slot), b"") for level in levels]
            self._pool.send(registration, RunBatch(attempt.number, list(slots), given, is_watched, [*suspects.items()]))
        with self._changed:
            for registration in slots.values():  # a slot may have been lost before `_handle` knew the attempt
                if not self._pool.is_live(registration):
                    attempt.lose(registration)
        return attempt

    def _abort(self, attempt: BatchAttempt) -> None:
        for registration in attempt.slots.values():
            self._pool.send(registration, AbortBatch(attempt.number))

    def _pause_after(self, failures: int) -> None:
        """Waits before the next attempt: a slot may be lost again and again, or the log may be away."""
        if failures > 1:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping, min(0.1 * 2**failures, 5.0))

    def _commit(self, number: int, clock: int, attempt: BatchAttempt) -> None:
        self._commits.commit(number, clock, [wire_format.decode(raw) for raw in attempt.messages])
        self._pool.commit(number)
        with self._changed:
            self._changed.notify_all()

    def record_delivery(self, number: int) -> None:
        """Keeps how long the delivery of a batch took, once the log has its outputs. The next batch runs meanwhile."""
        self._commits.record_delivery(number)
        with self._changed:
            self._changed.notify_all()

    # ----------------------------------------------------------------------------------------------------------- shares
    def _deliver_shares(self, number: int, orders: Sequence[DeliveryOrder]) -> list[wire_format.Message | bytes]:
        """Has the slots deliver shares of a batch. Called in the threads of deliveries and of sinks.

        The number of shares never changes, because it decides which share has which partitions. If a slot is lost,
        other slots deliver its share when the delivery is tried again.
        """
        share_round, answers = next(self._share_rounds), queue.SimpleQueue[ShareDelivered]()
        self._share_answers[share_round] = answers
        try:
            return self._ask_slots(number, orders, share_round, answers)
        finally:
            del self._share_answers[share_round]

    def _ask_slots(
        self,
        number: int,
        orders: Sequence[DeliveryOrder],
        share_round: int,
        answers: queue.SimpleQueue[ShareDelivered],
    ) -> list[wire_format.Message | bytes]:
        slots = self._pool.await_slots()
        if not slots:
            raise QueryStoppedError(f"batch {number} was not delivered: the slots are being ended")
        asked = {order.share: slots[order.share % len(slots)] for order in orders}
        for order in orders:
            self._pool.send(asked[order.share], DeliverShare(share_round, wire_format.encode(order)))
        found: list[wire_format.Message | bytes] = []
        while asked:
            if not all(map(self._pool.is_live, asked.values())):
                raise QueryStoppedError(f"a slot was lost while it delivered a share of batch {number}")
            try:
                answer = answers.get(timeout=TICK)
            except queue.Empty:
                continue
            found.append(read_share_answer(answer, number))
            del asked[answer.share]
        return found

    # ------------------------------------------------------------------------------------------------ seen from outside
    @property
    def has_sent_stream_time(self) -> bool:
        """True when every task has been told the current stream time."""
        return self._commits.has_sent_stream_time

    def wait(self, reached: Callable[[], bool], timeout: float) -> bool:
        """Waits for a condition, which is checked now and after every batch; True if it holds."""
        with self._changed:
            return reached() or (self._changed.wait(timeout) and reached())

    def observed(self) -> dict[str, Any]:
        """What a report says about the slots and the phases of batches."""
        pool = self._pool
        slots = pool.report()
        return {"phases": dict(self._commits.phases), "slots": slots, "moves": pool.moves, "traffic": pool.traffic}

    def describe_slots(self) -> dict[str, Any]:
        """What `headrace status` shows of the slots."""
        return encode_slots(self._pool.report(), self._pool.moves)

    def _last_change(self, task: TaskId) -> int:
        """The batch in which the state of a task changed last."""
        version = self._coordinator.ledger.head(task).version
        return -1 if version is None else version.number

    def check(self) -> None:
        """Raises the error that has stopped the batches, if there is one."""
        if self._failed is not None:
            raise self._failed

    def pause(self, paused: bool) -> None:
        """Pauses or resumes: no further batch begins while the engine is paused."""
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def look(self) -> None:
        """Follows the cluster: cores that it gains get slots, and slots of cores that it loses are not waited for."""
        now = time.monotonic()
        if now >= self._looked + LOOK:
            self._looked = now
            self._pool.want(self._wanted_slots())

    def scale(self, slots: int) -> int:
        """Sets the number of slots, limited by the room that Spark has; returns the number. Tasks move accordingly."""
        self._scaled_to = slots
        wanted = self._wanted_slots()
        self._pool.want(wanted)
        return wanted

    def _wanted_slots(self) -> int:
        config, tasks = self._job.config, len(self._job.all_tasks())
        room = find_slots(self._context, self._job.free_cores)
        return max(1, min(self._scaled_to or config.num_stream_threads or room, room, tasks))

    def stop(self, timeout: float | None = None) -> bool:
        """Lets the running batch end. After `timeout` seconds, by default 8, cuts it off and returns False."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join(GRACE if timeout is None else timeout)
        is_ended = not self._thread.is_alive()
        if not is_ended:
            with self._changed:
                self._is_cut = True
                self._changed.notify_all()
            self._thread.join(1.0)
        return is_ended

    def clear(self) -> None:
        """Ends the slots. They deliver nothing afterwards."""
        self._pool.close()


@contextmanager
def planning() -> Generator[None]:
    """Makes an error of planning one after which the application starts again.

    A broker that restarts may give no offsets, and a topic may have been deleted: a start waits for the broker, and
    explains that the topic is missing.
    """
    try:
        yield
    except StreamsError as error:
        raise QueryStoppedError(f"the next batch could not be planned: {error}") from error


def driver_address(context: SparkContext, job: Job) -> DriverAddress:
    """Where slots reach the driver: where Spark's executors do, unless a setting says otherwise."""
    config = job.config
    usual, bind = "127.0.0.1", "127.0.0.1"
    if not is_local(context):
        usual, bind = context.getConf().get("spark.driver.host") or usual, ""
    return DriverAddress(
        config.driver_advertised_address or usual,
        0,
        secrets.token_bytes(32),
        config.slot_bind_address or bind,
        encrypts_rpc(context),
        config.slot_ports,
    )


def find_exposed_secrets(settings: Mapping[str, Any], *, is_cluster: bool) -> list[str]:
    """Returns the settings with passwords and keys that leave this machine with the application.

    >>> find_exposed_secrets({"sasl.password": "x", "sasl.mechanism": "PLAIN"}, is_cluster=True)
    ['sasl.password']
    """
    return sorted(filter(is_secret, settings)) if is_cluster else []


def encrypts_rpc(context: SparkContext) -> bool:
    """Whether Spark encrypts the connections of its processes: slots and the driver then encrypt theirs, too."""
    conf = context.getConf()
    names = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption")
    return any(conf.get(name, "false") == "true" for name in names)
