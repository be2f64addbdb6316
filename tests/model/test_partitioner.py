"""Partitions against those that Kafka's own client computes: `vectors/murmur2.csv`."""

import csv
from pathlib import Path
from random import Random

import pytest

from headrace.model.partitioner import murmur2, partition_of, partitions_of

with (Path(__file__).parent / "vectors" / "murmur2.csv").open(encoding="utf-8") as lines:
    VECTORS = list(csv.DictReader(lines))


def test_hashes_and_partitions_are_kafkas():
    for row in VECTORS:
        key = bytes.fromhex(row["key_hex"])
        assert murmur2(key) == int(row["murmur2"])
        assert partition_of(key, 6) == int(row["partition_of_6"])
        assert partition_of(key, 7) == int(row["partition_of_7"])


def test_a_record_without_key_may_go_anywhere():
    assert partition_of(None, 6) is None


@pytest.mark.parametrize("length", range(18))
def test_many_keys_go_where_each_of_them_goes(length: int):
    random = Random(length)  # noqa: S311 - it must repeat
    alike: list[bytes | None] = [random.randbytes(length) for _ in range(1_000)]
    others: list[bytes | None] = [None, b"", b"another length", *(b"%d" % n for n in range(1_000))]
    keys = alike + others
    random.shuffle(keys)
    for partitions in (1, 6, 7):
        assert partitions_of(keys, partitions) == [partition_of(key, partitions) for key in keys]
    assert partitions_of([], 6) == []
