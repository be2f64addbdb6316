"""Receipts as bytes, and whether those of a batch belong together."""

from dataclasses import replace

import pytest

from headrace.checkpoint.files import BlobRef, FileRef, read_blob
from headrace.checkpoint.receipt import (
    Receipt,
    check_receipts,
    complete_receipt,
    decode_receipt,
    encode_receipt,
    new_attempt,
)
from headrace.checkpoint.storage import ObjectStorage
from headrace.errors import StageRerunError, StorageError, StreamsError
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.rows import batch_rows
from headrace.state.delta import Delta, decode_delta
from headrace.state.engine import Version

A, B, C = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)
FULL = Receipt(
    task=A, level=1, number=7, attempt="x1", base=Version(6, "w9"), delta=FileRef("deltas/0_0/7-x1", 3, b"d" * 16),
    entries=2, whole=True, outbox=b"out", carried={C: b"rows"}, positions={TopicPartition("in", 0): 12},
    dropped={"late": 1}, due=1800, sent={C: 4}, consumed={"y2": 5},
)  # fmt: skip


def receipt(task, attempt, **more) -> Receipt:
    given = {"task": task, "level": 0, "number": 7, "attempt": attempt, "base": None, "delta": b"", "entries": 0}
    return Receipt(**given | more)


def test_a_receipt_survives_being_bytes():
    assert decode_receipt(encode_receipt(FULL)) == FULL
    assert decode_receipt(encode_receipt(receipt(A, "x"))) == receipt(A, "x")
    with pytest.raises(StreamsError, match="not a receipt"):
        decode_receipt(b"HRR2" + encode_receipt(FULL)[4:])


def test_the_bytes_of_a_receipt_do_not_change():
    assert encode_receipt(FULL).hex() == GOLDEN


def test_attempts_are_told_apart():
    assert len({new_attempt() for _ in range(1000)}) == 1000


# ------------------------------------------------------------------------------------------------------ the same run
def run_of_three() -> list[Receipt]:
    #  A ─3─▶ C ◀─2─ B
    return [receipt(A, "a", sent={C: 3}), receipt(B, "b", sent={C: 2}), receipt(C, "c", consumed={"a": 3, "b": 2})]


def test_receipts_of_one_run_are_accepted():
    check_receipts(run_of_three(), 7, {})
    check_receipts([], 7, {A: Version(1, "x")})


@pytest.mark.parametrize(
    "place, change, says",
    [
        (0, {"number": 8}, "task 0_0 handed back batch 8 in batch 7"),
        (0, {"attempt": "a2"}, "task 0_0 sent 3 rows to 1_0, which consumed 0 of them"),
        (1, {"sent": {C: 1}}, "task 0_1 sent 1 rows to 1_0, which consumed 2 of them"),
        (1, {"sent": {}}, "task 1_0 consumed 2 rows that task 0_1 sent to it"),
        (2, {"consumed": {"a": 3}}, "task 0_1 sent 2 rows to 1_0, which consumed 0"),
        (2, {"consumed": {"a": 3, "b": 2, "z": 1}}, "consumed 1 rows that no attempt of this run sent to it"),
        (2, {"task": B}, "task 0_1 ran twice"),
        (2, {"base": Version(6, "other")}, "task 1_0 started from .*other.*, but stands at None"),
    ],
)
def test_receipts_of_different_runs_are_refused(place, change, says):
    receipts = run_of_three()
    receipts[place] = replace(receipts[place], **change)
    with pytest.raises(StageRerunError, match=says) as caught:
        check_receipts(receipts, 7, {})
    assert caught.value.retriable


def test_a_task_that_is_missing_is_noticed_by_those_who_sent_to_it():
    with pytest.raises(StageRerunError, match="which consumed 0"):
        check_receipts(run_of_three()[:2], 7, {})
    with pytest.raises(StageRerunError, match="no attempt of this run"):
        check_receipts(run_of_three()[1:], 7, {})


def test_a_task_starts_from_where_it_stands():
    started = [receipt(A, "a", base=Version(6, "x"))]
    check_receipts(started, 7, {A: Version(6, "x")})
    with pytest.raises(StageRerunError, match="started from"):
        check_receipts(started, 7, {A: Version(6, "y")})


# --------------------------------------------------------------------------------------------------------- completing
DELTA = Delta(Version(7, "x1"), ((b"key", b"value"),))
OUTPUTS = [("out", 0, b"k", b"v", 5, (), ())]
CARRIED = {C: batch_rows([("t", 0, 1, b"k", b"v", 5, (), (5,))]), B: []}


def completed(storage, inline: int, delta: Delta = DELTA) -> Receipt:
    started = receipt(A, "x1", level=1)
    return complete_receipt(storage, started, delta, OUTPUTS, CARRIED, lambda _: 1, inline=inline)


def test_what_is_small_travels_in_the_receipt_and_what_is_not_in_files():
    storage = ObjectStorage.at("memory:///", {})
    inline = completed(storage, inline=1 << 20)
    assert storage.names() == []
    assert isinstance(inline.delta, bytes)
    assert decode_delta(inline.delta) == DELTA
    files = completed(storage, inline=0)
    assert storage.names() == [
        "carried/0_0/000000000007-x1-1_0", "deltas/0_0/000000000007-x1", "outboxes/0_0/000000000007-x1",
    ]  # fmt: skip
    assert list(files.carried) == list(inline.carried) == [C]
    for blob, expected in zip(
        [files.delta, files.outbox, files.carried[C]], [inline.delta, inline.outbox, inline.carried[C]], strict=True
    ):
        assert isinstance(blob, FileRef)
        assert read_blob(storage, BlobRef(blob.name, 0, blob.size, blob.digest), "x") == expected
    assert (files.version, files.entries, files.base) == (DELTA.version, 1, None)


def test_the_room_in_a_receipt_is_shared():
    storage = ObjectStorage.at("memory:///", {})
    room = len(completed(storage, inline=1 << 20).delta) + 10
    found = completed(storage, inline=room)
    assert isinstance(found.delta, bytes)
    assert isinstance(found.outbox, FileRef)


def test_a_second_attempt_with_the_same_id_is_refused():
    storage = ObjectStorage.at("memory:///", {})
    completed(storage, inline=0)
    completed(storage, inline=0)  # the same again does no harm
    with pytest.raises(StorageError, match="two attempts have the same id"):
        completed(storage, inline=0, delta=replace(DELTA, changes=()))


GOLDEN = (
    "48525231de0011a47461736b920000a56c6576656c01a66e756d62657207a7617474656d7074a27831a4626173659206a27739a56465"
    "6c746193af64656c7461732f305f302f372d783103c41064646464646464646464646464646464a7656e747269657302a577686f6c65"
    "c3a66f7574626f78c4036f7574a76361727269656481920100c404726f7773a9706f736974696f6e738192a2696e000ca764726f7070"
    "656481a46c61746501a564726f707390a3647565cd0708ab73747265616d5f74696d65ffa473656e748192010004a8636f6e73756d65"
    "6481a2793205"
)
