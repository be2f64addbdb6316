"""The real-time trigger: batches run in slots that stay alive, and no Spark job is started for them.

    plan ─▶ orders to all slots ─▶ results of all slots ─▶ manifest ─▶ delivery, while the next batch runs

`BatchLoop` decides what comes next; this module has the threads, and the number of slots.
"""

from __future__ import annotations

import itertools
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pyspark import SparkContext

from headrace.checkpoint.coordinator import Coordinator
from headrace.log.open import open_log
from headrace.model.clock import SystemClock
from headrace.model.ids import TaskId
from headrace.query.status import encode_slots
from headrace.spark import wire_format
from headrace.spark.batch_commits import BatchCommits
from headrace.spark.batch_loop import BatchLoop
from headrace.spark.batch_planner import Planner
from headrace.spark.delivery_job import DeliveryOrder, SharedDelivery, ShareRound
from headrace.spark.job import Job, is_local, pickle_job
from headrace.spark.session import count_slots, encrypts_rpc
from headrace.spark.slot import DriverAddress
from headrace.spark.slot_messages import AtRecord, BatchBroken, BatchDone, ShareDelivered
from headrace.spark.slot_pool import SlotPool
from headrace.spark.slot_registry import Registration
from headrace.spark.stats import ApplicationStats
from headrace.spark.transport import port_range

_log = logging.getLogger(__name__)
GRACE = 8.0  # seconds that a running batch has to end, when the application is stopped
TICK = 0.1  # seconds
LOOK = 2.0  # seconds between two looks at how many cores Spark has
FULL = 10.0  # seconds without a free core, before that is in the log: executors may be starting


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
        # Messages of slots, each with its registration; None if something else has changed.
        self._events = queue.SimpleQueue[tuple[int, BatchDone | BatchBroken | AtRecord | None] | None]()
        self._share_rounds = itertools.count(1)
        self._share_answers: dict[int, queue.SimpleQueue[ShareDelivered]] = {}  # by round
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
            committed=coordinator.ledger.number,
            handle=self._handle,
            on_ready=self._wake,
        )
        self._context, self._looked = context, time.monotonic()
        self._scaled_to: int | None = None  # by `scale`
        self._free_at: float | None = self._looked  # when Spark had a core that no slot held; None: the log says it
        self._set_slots()
        self.shares = SharedDelivery(job, lambda: job.slots, self._deliver_shares)
        self._thread = threading.Thread(target=self._run, name="headrace batches", daemon=True)
        self._thread.start()

    # --------------------------------------------------------------------------------------------------------- batches
    def _handle(
        self, registration: Registration, message: BatchDone | BatchBroken | AtRecord | ShareDelivered | None
    ) -> None:
        """Passes a message of a slot on. Called in the thread of the endpoint."""
        if not isinstance(message, ShareDelivered):
            self._events.put((registration.number, message))
            return
        answers = self._share_answers.get(message.round)
        if answers is not None:  # else the round has ended
            answers.put(message)

    def _wake(self) -> None:
        """Has the thread of the batches look at what has changed."""
        self._events.put(None)

    def _run(self) -> None:
        log = open_log(self._job.log, self._job.config.client_settings)
        try:
            loop = BatchLoop(
                self._job,
                Planner(self._job, log),
                self._commits,
                self._pool,
                clock=SystemClock(),
                seconds=time.monotonic,
                estimate_wait=self._coordinator.estimate_wait,
                on_commit=self._on_commit,
            )
            while not self._is_cut and (loop.is_running or not self._is_stopping):
                if self._paused and not loop.is_running:
                    self._take_messages(loop, TICK)
                    continue
                wait = loop.advance()
                self.is_ready = loop.is_ready
                if wait.for_records:
                    loop.await_records()
                self._take_messages(loop, wait.seconds)
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._failed = error
        finally:
            log.close()
            with self._changed:
                self._changed.notify_all()

    def _take_messages(self, loop: BatchLoop, seconds: float) -> None:
        """Waits for a message of a slot, and passes on all that have arrived."""
        with suppress(queue.Empty):
            event = self._events.get(timeout=seconds) if seconds > 0 else self._events.get_nowait()
            while True:
                if event is not None:
                    loop.handle(*event)
                event = self._events.get_nowait()

    def _on_commit(self, number: int) -> None:
        self._pool.commit(number)
        with self._changed:
            self._changed.notify_all()

    def record_delivery(self, number: int) -> None:
        """Keeps how long the delivery of a batch took, once the log has its outputs. The next batch runs meanwhile."""
        self._commits.record_delivery(number)
        self._wake()
        with self._changed:
            self._changed.notify_all()

    # ----------------------------------------------------------------------------------------------------------- shares
    def _deliver_shares(self, number: int, orders: Sequence[DeliveryOrder]) -> list[wire_format.Message | bytes]:
        """Has the slots deliver shares of a batch. Called in the threads of deliveries and of sinks."""
        share_round, answers = next(self._share_rounds), queue.SimpleQueue[ShareDelivered]()
        self._share_answers[share_round] = answers
        try:
            shares = ShareRound(number, share_round, orders, self._pool.await_slots())
            for registration, message in shares.messages:
                self._pool.send(registration, message)
            while not shares.is_over:
                shares.check_slots(self._pool.is_live)
                with suppress(queue.Empty):
                    shares.finish(answers.get(timeout=TICK))
            return shares.results
        finally:
            del self._share_answers[share_round]

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
        return {
            "phases": dict(self._commits.phases),
            "slots": slots,
            "moves": pool.moves,
            "queued_slots": pool.queued,
            "traffic": pool.traffic,
        }

    def describe_slots(self) -> dict[str, Any]:
        """What `headrace status` shows of the slots."""
        return encode_slots(self._pool.report(), self._pool.moves, self._pool.queued)

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
        self._paused = paused
        self._wake()

    def look(self) -> None:
        """Follows the cluster: cores that it gains get slots, and slots of cores that it loses are not waited for."""
        now = time.monotonic()
        if now >= self._looked + LOOK:
            self._looked = now
            self._set_slots()

    def scale(self, slots: int) -> int:
        """Sets the number of slots, limited by the room that Spark has; returns the number. Tasks move accordingly."""
        self._scaled_to = slots
        return self._set_slots()

    def _set_slots(self) -> int:
        """Asks for as many slots as Spark has room for, and says in the log why it is another number than before."""
        job, pool, now = self._job, self._pool, time.monotonic()
        found = count_slots(
            self._context, len(job.all_tasks()), self._scaled_to or job.config.num_stream_threads, job.free_cores,
            own=pool.wanted, others=pool.held_by_others,
        )  # fmt: skip
        if found.slots != pool.wanted:
            _log.info("%d %s: %s", found.slots, "slot" if found.slots == 1 else "slots", found.reason)
        if self._free_at is not None and (found.free != 0 or not job.free_cores):
            self._free_at = now
        elif self._free_at is not None and now > self._free_at + FULL:
            self._free_at = None
            _log.warning(
                "slots hold all cores of Spark (%s): its other jobs wait until an application stops. Set fewer "
                "num.stream.threads, or give Spark one core more",
                self._context.master,
            )
        pool.want(found.slots)
        return found.slots

    def stop(self, timeout: float | None = None) -> bool:
        """Lets the running batch end. After `timeout` seconds, by default 8, cuts it off and returns False."""
        self._is_stopping = True
        self._wake()
        self._thread.join(GRACE if timeout is None else timeout)
        is_ended = not self._thread.is_alive()
        if not is_ended:
            self._is_cut = True
            self._wake()
            self._thread.join(1.0)
        return is_ended

    def clear(self) -> None:
        """Ends the slots. They deliver nothing afterwards."""
        self._pool.close()


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
