"""Outboxes: as bytes, and how those of several tasks become what the log is given."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.checkpoint.outbox import decode_outbox, decode_rows, encode_outbox, encode_rows, merge_outboxes
from headrace.errors import CheckpointCorruptedError
from headrace.log.chunk_format import unpack
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from headrace.runtime.rows import PartitionBatch, batch_rows
from tests.profiles import examples

raw = st.none() | st.binary(max_size=3)
headers = st.lists(st.tuples(st.text(max_size=2), raw), max_size=2).map(tuple)
orders = st.just(()) | st.tuples(st.integers(0, 3), st.integers(0, 3))
outputs = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.none() | st.integers(0, 2), raw, raw, st.integers(0, 99), headers, orders)
)


def records(given) -> list[tuple]:
    """Of packed records or columns, record by record."""
    found = given if isinstance(given, Records) else unpack(given)[0]
    return list(zip(found.keys, found.values, found.timestamps, found.headers or [()] * len(found), strict=True))


def written(*outboxes, count=3, home=0) -> dict:
    """What the log would be given, by partition."""
    found = {}
    for at, some in merge_outboxes([(home, decode_outbox(outbox)) for outbox in outboxes], lambda _: count):
        found.setdefault(at, []).extend(records(some))
    return found


def by_place(rows, count) -> dict:
    found = {}
    for topic, partition, key, value, time, some, _ in rows:
        place = partition if partition is not None else partition_of(key, count)
        found.setdefault((topic, 0 if place is None else place), []).append((key, value, time, some))
    return found


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(outputs, st.booleans())
def test_the_records_of_a_task_reach_their_partitions_in_their_order(rows, packed):
    assert written(encode_outbox(rows, lambda _: 3, packed=packed)) == by_place(rows, 3)


@settings(max_examples=examples(40), deadline=None)
@given(outputs, st.booleans())
def test_partitions_that_were_not_known_are_chosen_at_delivery(rows, packed):
    rows = [(topic, None, *rest) for topic, _, *rest in rows]
    assert written(encode_outbox(rows, lambda _: None, packed=packed)) == by_place(rows, 3)


def test_records_without_a_key_stay_where_their_task_is():
    rows = [("a", None, None, b"%d" % n, n, (), ()) for n in range(5)]
    assert list(written(encode_outbox(rows, lambda _: 3, 7))) == [("a", 1)]
    assert list(written(encode_outbox(rows, lambda _: None), home=7)) == [("a", 1)]
    assert list(written(encode_outbox(rows, lambda _: 1, 7), count=1)) == [("a", 0)]


def test_where_several_tasks_write_to_a_partition_causes_come_in_their_order():
    #  order       1     2     3
    #  first       x1          x3      a level above the second
    #  second      y1    y2    y3
    def row(name, *order):
        return ("a", 0, None, name, 0, (), order)

    first = [row(b"x1", 1), row(b"x3", 3)]
    second = [row(b"y1", 1), row(b"y2", 2), row(b"y3", 3)]
    for packed in (True, False):
        outboxes = [encode_outbox(some, lambda _: 1, packed=packed) for some in (first, second)]
        assert [value for _, value, _, _ in written(*outboxes)["a", 0]] == [b"x1", b"y1", b"y2", b"x3", b"y3"]


def test_what_a_task_wrote_late_for_an_early_cause_stays_behind():
    def row(name, order):
        return ("a", 0, None, name, 0, (), order)

    first = [row(b"x5", (5,)), row(b"x1", (1,)), row(b"x6", (6,))]
    second = [row(b"tick", ()), row(b"y3", (3,)), row(b"y5", (5,)), row(b"y7", (7,))]
    both = written(encode_outbox(first, lambda _: 1), encode_outbox(second, lambda _: 1))
    assert [value for _, value, _, _ in both["a", 0]] == [b"tick", b"y3", b"x5", b"x1", b"y5", b"x6", b"y7"]


def test_many_records_are_packed_in_parts():
    rows = [("a", 0, b"%d" % n, b"v" * 10, n, (), (n,)) for n in range(60_000)]
    (section,) = decode_outbox(encode_outbox(rows, lambda _: 1))
    assert len(section.packed) > 1
    assert [key for part in section.packed for key, *_ in records(part)] == [row[2] for row in rows]


def test_records_for_a_log_without_chunks_are_delivered_as_columns():
    rows = [("a", 0, b"%d" % n, b"v" * 10, n, (), (n,)) for n in range(1_000)]
    (section,) = decode_outbox(encode_outbox(rows, lambda _: 1, packed=False))
    assert section.packed == []
    ((at, given),) = merge_outboxes([(0, [section])], lambda _: 1)
    assert at == ("a", 0)
    assert isinstance(given, Records)
    assert records(given) == [row[2:6] for row in rows]


def test_bytes_of_earlier_versions_can_be_read():
    (section,) = decode_outbox(bytes.fromhex(GOLDEN))
    assert (section.topic, section.partition) == ("counts", 2)
    assert [records(part) for part in section.packed] == [[(b"k", b"v", 5, (("h", b"1"),)), (b"k", None, 6, ())]]
    assert merge_outboxes([(0, [section])], lambda _: 3) == [(("counts", 2), section.packed[0])]


def test_the_bytes_of_an_outbox_do_not_change():
    (section,) = msgspec.msgpack.decode(encode_outbox(EXAMPLE, lambda _: 3)[4:])
    old = msgspec.msgpack.decode(bytes.fromhex(GOLDEN)[4:])[0]
    assert (section[:3], section[4]) == (old[:3], None)
    assert encode_outbox(EXAMPLE, lambda _: 3, packed=False).hex() == COLUMNS


def test_something_else_is_refused():
    with pytest.raises(CheckpointCorruptedError, match="outboxes/x is not an outbox"):
        decode_outbox(b"HRO9", "outboxes/x")
    with pytest.raises(CheckpointCorruptedError, match="begin with b'HRO2'"):
        decode_rows(encode_outbox([], lambda _: 1))


rows = st.lists(
    st.tuples(
        st.sampled_from("tu"), st.integers(0, 2), st.integers(0, 99), raw, raw, st.integers(0, 99), headers, orders
    )
)


def unbatched(batches) -> list[tuple]:
    return [row for batch in batches for row in batch.rows()]


@settings(max_examples=examples(40), deadline=None)
@given(rows)
def test_rows_for_other_tasks_survive_being_bytes(rows):
    assert unbatched(batch_rows(rows)) == rows
    assert unbatched(decode_rows(encode_rows(batch_rows(rows)))) == rows


def test_counts_survive_being_bytes():
    at, records = TopicPartition("t", 1), Records([b"a", b"b"], [None, None], [5, 6])
    (batch,) = decode_rows(encode_rows([PartitionBatch(at, [0, 3], records, [(5,), (6,)], [2, 7])]))
    assert (batch.at, batch.counts, batch.records) == (at, [2, 7], records)
    assert [row[2] for row in batch.rows()] == [0, 3]


def test_the_bytes_of_rows_do_not_change():
    row = ("t", 0, 7, b"k", None, 5, (("h", b"1"),), (5, 0, 7))
    assert encode_rows(
        batch_rows([row])
    ).hex() == "485242329199a174009107 91c4016b91c091059191 92a168c401319193050007c0".replace(" ", "")


def test_rows_of_earlier_versions_can_be_read():
    record = bytes.fromhex("485242319198a1740007c4016bc0059192a168c4013193050007")
    assert unbatched(decode_rows(record)) == [("t", 0, 7, b"k", None, 5, (("h", b"1"),), (5, 0, 7))]
    counted = b"HRB1" + msgspec.msgpack.encode([("t#counted", 0, 7, b"k", bytes(7) + b"\x03", 5, (), (5, 0, 7))])
    (batch,) = decode_rows(counted)
    assert (batch.at, batch.counts, unbatched([batch])) == (("t", 0), [3], [("t", 0, 7, b"k", None, 5, (), (5, 0, 7))])


COLUMNS = (
    "48524f329195a6636f756e747302909200c4099293050001930600029200c4199492c4016bc4016b92c40176c0920506929192a168c4013190"
)
EXAMPLE = [("counts", 2, b"k", b"v", 5, (("h", b"1"),), (5, 0, 1)), ("counts", 2, b"k", None, 6, (), (6, 0, 2))]
GOLDEN = (
    "48524f319194a6636f756e74730291c501e148524331c87faf30110200000005000000000000000600000000000000b8010000b801000000"
    "000000ffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000680000000000000000000a0018"
    "000c00040008000a000000cc000000100000000200000000000000000000000b000000000000000000000000000000000000000000000000"
    "0000000c00000000000000100000000000000002000000000000001800000000000000010000000000000020000000000000000c00000000"
    "0000003000000000000000010000000000000038000000000000000000000000000000380000000000000010000000000000004800000000"
    "000000010000000000000050000000000000000c000000000000006000000000000000070000000000000000000000040000000200000000"
    "0000000000000000000000020000000000000001000000000000000200000000000000000000000000000002000000000000000100000000"
    "000000000000000100000002000000000000006b6b0000000000000100000000000000000000000100000001000000000000007600000000"
    "000000050000000000000006000000000000000100000000000000000000000700000007000000000000009192a168c40131009209c41228"
    "b52ffd2009490000929305000193060002"
)
