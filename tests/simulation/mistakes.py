"""Mistakes that the simulation must find: each puts one into the real classes while a `with` block runs.

Those at the end were bugs of Headrace that the simulation has found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from headrace.checkpoint import compaction, coordinator, manifest_builder, recovery, restore
from headrace.checkpoint import storage as storage_module
from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.delivery import Delivery
from headrace.checkpoint.files import manifest_name, read_blob
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.manifest import manifest_digest
from headrace.log.kafka import delivery
from headrace.log.kafka.markers import MarkerTopics
from headrace.spark.exchange import Exchange
from headrace.state.engine import MemoryEngine
from tests.simulation import log, storage
from tests.simulation.disk import Disk

Mistake = Callable[[], Any]


@contextmanager
def _patched(*patches: Any) -> Generator[None]:
    with ExitStack() as stack:
        for some in patches:
            stack.enter_context(some)
        yield


def deliver_before_the_manifest() -> Any:
    real = Coordinator._write_manifest

    def write(self: Any, builder: Any) -> Any:
        manifest, data = builder.build(self.ledger, full_up_to=self._options.full_up_to)

        def read(blob: Any, what: str) -> bytes:
            inline = blob.file == manifest.number
            return data[blob.offset : blob.offset + blob.size] if inline else read_blob(self._storage, blob, what)

        if builder.receipts:
            self._delivery.begin(manifest.number, manifest.outboxes, read)()
        return real(self, builder)

    return patch.object(Coordinator, "_write_manifest", write)


def ignore_the_marker() -> Any:
    real = recovery.find_undelivered
    return _patched(
        patch.object(log, "is_next_batch", lambda *_: True),
        patch.object(recovery, "find_undelivered", lambda s, ledger, delivered: real(s, ledger, ledger.delivered)),
    )


def take_a_manifest_that_exists_for_ours() -> Any:
    def write(self: Any, builder: Any) -> Any:
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
    return patch.object(MarkerTopics, "pass_barrier", lambda *_: True)


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


def read_the_manifests_only_once() -> Any:
    """The owner purged the manifests that a starting instance was reading, which took the checkpoint for damaged."""

    def recover(files: Any, keep: int) -> Ledger:
        numbers = recovery.manifest_numbers(files)
        return recovery._read_manifests(files, keep, numbers) if numbers else Ledger()

    return patch.object(recovery, "recover_ledger", recover)


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
        let_an_earlier_epoch_commit,
        read_the_marker_only_before_the_manifests,
        read_the_manifests_only_once,
    )
}
