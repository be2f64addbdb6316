"""Runs batches of an application in this process, on its log and checkpoint, without Spark: for tests of commands."""

from __future__ import annotations

from headrace import Application
from headrace.checkpoint.coordinator import CommitOptions, Coordinator
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.receipt import decode_receipt
from headrace.checkpoint.storage import open_storage
from headrace.log.open import open_log
from headrace.spark import wire_format
from headrace.spark.batch_planner import Planner, make_control, plan_orders
from headrace.spark.job_planner import plan_job
from headrace.spark.slot_runner import SlotRunner
from headrace.spark.topics import first_positions, prepare_topics


def run_batches(app: Application, *, clock: int = 1_000, keep: int | None = None) -> int:
    """Processes what is in the log, and returns the number of the last batch."""
    setup = app.setup
    storage, log = open_storage(setup.checkpoint), open_log(setup.log)
    topics = prepare_topics(log, setup.graph, setup.config)
    planned = plan_job(setup, log, storage, topics)
    kept = setup.config.checkpoint_keep_batches if keep is None else keep
    options = CommitOptions(max_undelivered=0, background=False, keep=kept, purge_every=1, purge_delay_ms=0)
    with Coordinator.open(
        storage, log, setup.application_id, planned.fingerprint,
        topics={topic: log.topic(topic).id for topic in topics},
        positions=first_positions(log, setup.graph, setup.config, topics),
        options=options,
    ) as coordinator:  # fmt: skip
        job = planned.job.with_checkpoint(coordinator.ledger, 1)
        planner = Planner(job, log)
        runner = SlotRunner(job, LocalCopies(f"{setup.checkpoint}-state", job.checkpoint_id, locks=False))
        try:
            while True:
                control = make_control(coordinator.ledger, (), -1)
                ends = planner.plan_ends(control)
                if not ends and not planner.must_run(control, clock):
                    return coordinator.ledger.number
                _run_batch(runner, coordinator, plan_orders(job, control, coordinator.number, clock, ends), clock)
                clock += 1
        finally:
            runner.close()
            log.close()


def _run_batch(runner: SlotRunner, coordinator: Coordinator, orders: dict[tuple[int, int], bytes], clock: int) -> None:
    rows: dict[int, list[bytes]] = {}
    receipts = []
    for (level, _), raw in sorted(orders.items()):
        for _, message in runner.handle(raw, rows.pop(level, [])):
            to = wire_format.level_of(message)
            if to is not None:
                rows.setdefault(to, []).append(message)
            elif message.startswith(wire_format.RECEIPT):
                receipts.append(decode_receipt(message[1:]))
            else:
                assert not isinstance(wire_format.decode(message), wire_format.Failed), message
    coordinator.commit(coordinator.number, clock, receipts)
