"""Mistakes that the simulation must find: each puts one into the real classes while a `with` block runs.

Those at the end were bugs of Headrace. The simulation has found all of them but the last.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from headrace.checkpoint import compaction, coordinator, manifest_builder, recovery, rescale, restore, sink_delivery
from headrace.checkpoint import storage as storage_module
from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.delivery import Delivery
from headrace.checkpoint.files import manifest_name, read_blob
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.manifest import manifest_digest
from headrace.checkpoint.sink_delivery import SinkDelivery
from headrace.log.kafka import delivery
from headrace.log.kafka.delivery import BatchDelivery, ShareDelivery
from headrace.log.kafka.markers import MarkerTopics, share_markers
from headrace.spark import slot_runner, standbys
from headrace.spark.exchange import Exchange
from headrace.state.engine import MemoryEngine
from tests.simulation import log, storage
from tests.simulation.disk import Disk
from tests.simulation.sink import Target

Mistake = Callable[[], Any]


@contextmanager
def _patched(*patches: Any) -> Generator[None]:
    with ExitStack() as stack:
        for some in patches:
            stack.enter_context(some)
        yield


def deliver_before_the_manifest() -> Any:
    real = Coordinator._write_manifest

    def write(self: Any, builder: Any, began: Any) -> Any:
        manifest, data = builder.build(self.ledger, full_up_to=self._options.full_up_to)

        def read(blob: Any, what: str) -> bytes:
            inline = blob.file == manifest.number
            return data[blob.offset : blob.offset + blob.size] if inline else read_blob(self._storage, blob, what)

        if builder.receipts:
            self._delivery.begin(manifest.number, manifest.outboxes, read)()
        return real(self, builder, began)

    return patch.object(Coordinator, "_write_manifest", write)


def ignore_the_marker() -> Any:
    real = recovery.find_undelivered
    return _patched(
        patch.object(log, "is_next_batch", lambda *_: True),
        patch.object(recovery, "find_undelivered", lambda s, ledger, delivered: real(s, ledger, ledger.delivered)),
    )


def take_a_manifest_that_exists_for_ours() -> Any:
    def write(self: Any, builder: Any, began: Any) -> Any:
        manifest, data = builder.build(self.ledger, full_up_to=self._options.full_up_to)
        self._storage.create(manifest_name(manifest.number), data)
        self.ledger.apply(manifest, manifest_digest(data))
        return manifest, data

    return patch.object(Coordinator, "_write_manifest", write)


def write_a_batch_number_twice() -> Any:
    def put(self: Any, name: str, data: bytes, **_: Any) -> None:
        self._begin(f"creates {name}")
        self._bucket.objects[name] = bytes(data)
        self._bucket.on_create(name, bytes(data))
        self._end(f"creates {name}")

    return patch.object(storage._Client, "put", put)


def delete_a_delta_that_is_needed() -> Any:
    real = Ledger.needed_files

    def needed(self: Ledger, keep: int) -> set[str]:
        first = {task.chain[0].blob.name for task in self.tasks.values() if len(task.chain) > 1}
        return real(self, keep) - {name for name in first if name.startswith("deltas/")}

    return patch.object(Ledger, "needed_files", needed)


def delete_files_of_a_batch_that_is_running() -> Any:
    real = compaction.purge_files
    return patch.object(compaction, "purge_files", lambda s, needed, up_to, *rest: real(s, needed, up_to + 1, *rest))


def delete_outboxes_before_they_are_delivered() -> Any:
    return patch.object(Ledger, "forget_outboxes", _forget_all_outboxes)


def _forget_all_outboxes(self: Ledger, up_to: int) -> None:
    self.outboxes.clear()


def forget_carried_rows() -> Any:
    def carried(ledger: Any, receipts: Any, blobs: Any) -> Any:
        new = [(r, to, blob) for r in receipts for to, blob in sorted(r.carried.items())]
        return tuple(manifest_builder.Carried(to, r.task, manifest_builder._blob_ref(b, blobs)) for r, to, b in new[1:])

    return patch.object(manifest_builder, "_carried", carried)


def restore_without_the_last_delta() -> Any:
    real = restore._apply

    def apply(engine: Any, how: str, deltas: Any, read: Any) -> Any:
        if len(deltas) < 2:
            return real(engine, how, deltas, read)
        found = real(engine, how, deltas[:-1], read)
        engine.version = deltas[-1].version
        return found

    return patch.object(restore, "_apply", apply)


def keep_what_an_aborted_attempt_changed() -> Any:
    def undo(self: Any) -> None:
        if self._before is None:
            raise restore.InvalidStateStoreError("nothing to undo")
        self.version, self._before = self._before[0], None

    return patch.object(MemoryEngine, "undo", undo)


def apply_the_deltas_in_another_order() -> Any:
    real = compaction.merge

    def merge(deltas: Any, **options: Any) -> Any:
        some = list(deltas)
        merged = real([*some[1:], some[0]], **options)
        return type(merged)(some[-1].version, merged.changes)

    return patch.object(compaction, "merge", merge)


def keep_the_rows_of_aborted_attempts() -> Any:
    real = Exchange.add

    def add(self: Exchange, delivery: Any) -> None:
        real(self, delivery._replace(attempt=max(self.attempt, delivery.attempt)))

    return _patched(patch.object(Exchange, "add", add), patch.object(coordinator, "check_receipts", lambda *_: None))


def read_some_records_again() -> Any:
    real = manifest_builder._by_topic

    def by_topic(positions: Mapping[Any, int]) -> Any:
        return real({at: offset - (offset == 3) for at, offset in positions.items()})

    return patch.object(manifest_builder, "_by_topic", by_topic)


def skip_the_fsync_of_a_file() -> Any:
    return patch.object(Disk, "sync_file", lambda self, inode: None)


def skip_the_fsync_of_a_directory() -> Any:
    return patch.object(storage_module, "_sync_directory", lambda directory: None)


def read_the_marker_without_a_barrier() -> Any:
    return _patched(
        patch.object(MarkerTopics, "pass_barrier", lambda *_: True),
        patch.object(MarkerTopics, "is_clear", lambda *_: True),
    )


def send_a_batch_again_whose_outcome_is_unknown() -> Any:
    real = delivery.retry_until_known
    return patch.object(
        delivery, "retry_until_known", lambda what, settings, attempt, _: real(what, settings, attempt, lambda: None)
    )


def mark_a_batch_before_it_is_appended() -> Any:
    """With the guarantee "at least once": what was marked and not appended is lost."""
    real = Delivery._send

    def send(self: Any, number: int, items: Any) -> Any:
        if not self._exactly_once:
            self._log.mark_delivered(self._application, number)
        return real(self, number, items)

    return patch.object(Delivery, "_send", send)


# ------------------------------------------------------------------------------------------------------------- shares
def mark_a_share_before_its_records() -> Any:
    real = ShareDelivery._commit

    def commit(self: Any, key: Any, known: Any, share: Any, batch: Any, **options: Any) -> None:
        if batch:
            known.producer.commit([], share_markers(key[0], share.number, dict.fromkeys(at for at, _ in batch)))
        real(self, key, known, share, batch, **options)

    return patch.object(ShareDelivery, "_commit", commit)


def deliver_a_share_again_that_is_marked() -> Any:
    return patch.object(ShareDelivery, "_find_missing", lambda self, application, share, batch: batch)


def leave_the_shares_of_an_earlier_owner_unfenced() -> Any:
    return patch.object(BatchDelivery, "_fence_shares", lambda *_: None)


def give_every_producer_of_a_share_an_id_of_its_own() -> Any:
    """A slot that counts as lost, and has a transaction open, is then not fenced by the slot that replaces it."""
    numbers = count()
    real = ShareDelivery._create_producer

    def create(self: Any, key: Any, batch_size: int) -> Any:
        application, ordinal = key
        return real(self, (application, (ordinal + 1) * 1_000_000 + next(numbers)), batch_size)

    return patch.object(ShareDelivery, "_create_producer", create)


# ----------------------------------------------------------------------------------------------------------- standbys
def take_over_with_a_standby_that_is_behind() -> Any:
    real = slot_runner.restore

    def take(provider: Any, wanted: Any, find_chain: Any, read: Any) -> Any:
        engine = provider.open()
        if wanted is not None and engine.version is not None and engine.version.number < wanted.number:
            engine.version = wanted
        return real(provider, wanted, find_chain, read)

    return patch.object(slot_runner, "restore", take)


def follow_only_the_last_delta() -> Any:
    """A standby that missed batches skips them."""
    real = standbys.restore

    def follow(provider: Any, wanted: Any, find_chain: Any, read: Any) -> Any:
        chain, engine = find_chain(), provider.open()
        if len(chain) > 1 and engine.version != wanted:
            engine.version = chain[-2].version
        return real(provider, wanted, lambda: chain, read)

    return patch.object(standbys, "restore", follow)


# ---------------------------------------------------------------------------------------------------- sinks, rescaling
def delete_outboxes_that_a_sink_lacks() -> Any:
    def clean_up(self: Any, tasks: Any, *, purge: bool) -> None:
        self.ledger.forget_outboxes(self._delivery.last)
        self._cleaner.start(self.ledger, tasks, purge=purge)

    return patch.object(Coordinator, "_clean_up", clean_up)


def record_a_batch_that_a_sink_lacks() -> Any:
    real = SinkDelivery._attempt

    def attempt(self: Any, number: int, outboxes: Any) -> None:
        sink_delivery.record_progress(self._storage, self._target.name, number, self.recorded)
        self.recorded = number
        real(self, number, outboxes)

    return patch.object(SinkDelivery, "_attempt", attempt)


def ignore_the_tokens_of_a_sink() -> Any:
    def store(self: Any, batch: Any) -> None:
        self.rows += [(record.key, record.value) for record in batch.records()]

    return patch.object(Target, "store", store)


def leave_keys_where_they_were_when_tasks_are_divided() -> Any:
    return patch.object(rescale, "_new_partition", lambda division, task, key: task.partition % division.after)


def divide_the_first_delta_only() -> Any:
    real = rescale._read_state
    return patch.object(rescale, "_read_state", lambda storage, task, chain: real(storage, task, chain[:1]))


# ----------------------------------------------------------------------------------------------- bugs that it has found
def let_an_earlier_epoch_commit() -> Any:
    """An owner that was overtaken while it took over went on, and committed after the later one."""
    real = Coordinator._read_latest_marker

    def read(self: Any) -> None:
        real(self)
        self.ledger.epoch = 0  # before it is compared

    return patch.object(Coordinator, "_read_latest_marker", read)


def read_the_marker_only_before_the_manifests() -> Any:
    """The previous owner delivered and committed in between, and the next one took the log for another one."""
    return patch.object(Coordinator, "_read_latest_marker", lambda self: None)


def trust_a_manifest_that_was_created_late() -> Any:
    """An owner was suspended before it created a manifest, and created one that its successor had purged."""
    return patch.object(Coordinator, "_may_be_purged", lambda *_: False)


def read_the_clocks_of_a_takeover_just_before_its_manifest() -> Any:
    """An instance was suspended after it had read the manifests, and created one that its successor had purged."""
    real = Coordinator._write_manifest

    def write(self: Any, builder: Any, was_last_at: Any) -> Any:
        is_takeover = builder.fingerprint is not None
        return real(self, builder, self._read_clocks() if is_takeover else was_last_at)

    return patch.object(Coordinator, "_write_manifest", write)


def read_the_manifests_only_once() -> Any:
    """The owner purged the manifests that a starting instance was reading, which took the checkpoint for damaged."""

    def recover(files: Any, keep: int) -> Ledger:
        numbers = recovery.manifest_numbers(files)
        return recovery._read_manifests(files, keep, numbers) if numbers else Ledger()

    return patch.object(recovery, "recover_ledger", recover)


# ------------------------------------------------------------------------------------------------- a bug that it missed
def rebuild_a_global_table_beside_its_stores() -> Any:
    """A slot that had run no task for a while rebuilt its copy, and its stores stayed on the one before."""

    def clear(self: Any) -> MemoryEngine:
        self._engine = MemoryEngine()
        return self._engine

    return patch.object(restore.MemoryEngineProvider, "clear", clear)


MISTAKES: dict[str, Mistake] = {
    mistake.__name__: mistake
    for mistake in (
        deliver_before_the_manifest,
        ignore_the_marker,
        take_a_manifest_that_exists_for_ours,
        write_a_batch_number_twice,
        delete_a_delta_that_is_needed,
        delete_files_of_a_batch_that_is_running,
        delete_outboxes_before_they_are_delivered,
        forget_carried_rows,
        restore_without_the_last_delta,
        keep_what_an_aborted_attempt_changed,
        apply_the_deltas_in_another_order,
        keep_the_rows_of_aborted_attempts,
        read_some_records_again,
        skip_the_fsync_of_a_file,
        skip_the_fsync_of_a_directory,
        read_the_marker_without_a_barrier,
        send_a_batch_again_whose_outcome_is_unknown,
        mark_a_batch_before_it_is_appended,
        mark_a_share_before_its_records,
        deliver_a_share_again_that_is_marked,
        leave_the_shares_of_an_earlier_owner_unfenced,
        give_every_producer_of_a_share_an_id_of_its_own,
        take_over_with_a_standby_that_is_behind,
        follow_only_the_last_delta,
        delete_outboxes_that_a_sink_lacks,
        record_a_batch_that_a_sink_lacks,
        ignore_the_tokens_of_a_sink,
        leave_keys_where_they_were_when_tasks_are_divided,
        divide_the_first_delta_only,
        let_an_earlier_epoch_commit,
        read_the_marker_only_before_the_manifests,
        read_the_manifests_only_once,
        trust_a_manifest_that_was_created_late,
        read_the_clocks_of_a_takeover_just_before_its_manifest,
        rebuild_a_global_table_beside_its_stores,
    )
}
