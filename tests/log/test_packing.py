"""Packed records: whatever goes in comes out, damage is noticed, and the bytes stay the same over time."""

import struct
import subprocess
import sys
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StateCorruptedError
from headrace.log import chunk_format as record_format
from headrace.log.chunk_format import COMPRESSED, NULL_KEYS, TOMBSTONES, pack, pack_parts, read_header, unpack
from headrace.log.protocol import Chunk, Records
from tests.log.harness import records, seeded

headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple)
some_bytes = st.none() | st.binary(max_size=5)
times = st.integers(-(2**63), 2**63 - 1)
entries = st.lists(st.tuples(some_bytes, some_bytes, times, headers), max_size=20)

# Written by format version 1: two records with headers and offsets 3 and 7, compressed.
GOLDEN = bytes.fromhex(
    "48524331a4ff2db21f020000000100000000000000020000000000000000020000000200000000000028b52ffd6000018505002249"
    "1822a035690d3fafaab3aa208efccefb7194829e17ad45c4714967e36432883442c896297f267930002902793056b50cb30bb34a55"
    "6af99c4e99d2ab68139fd1a845bc86b6d0426fd30aaa3f0fb8b3a9bc50a7e35025f97b9bcb40c23bd81a6bad153220d06be520dfd8"
    "ee86810d3c03355896026ea00e16594e205f6699ec9759160235df2649accddd78c024c678e081073ef0c0030f5862180f3cf0c003"
    "1b78e081071ed8c01bb387040fb40b"
)


@given(entries, st.booleans())
def test_packed_records_are_unpacked_unchanged(entries, with_offsets):
    given_offsets = [i * i for i in range(len(entries))] if with_offsets else None
    unpacked, offsets = unpack(pack(Records.from_rows(entries), given_offsets))
    assert offsets == given_offsets
    assert [row[1:] for row in Chunk(range(len(entries)), unpacked).rows()] == entries


@given(entries, st.data())
def test_no_damage_goes_unnoticed(entries, data):
    packed = bytearray(pack(Records.from_rows(entries)))
    bit = data.draw(st.integers(0, 8 * len(packed) - 1))
    packed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StateCorruptedError):
        unpack(bytes(packed))
    with pytest.raises(StateCorruptedError):
        unpack(bytes(packed[: bit // 8]))


def test_bytes_of_version_1_can_be_read():
    expected = Records([b"k", None], [b"v", None], [1, 2], [(("h", b"1"),), ()])
    assert unpack(GOLDEN) == (expected, [3, 7])
    assert unpack(pack(expected, [3, 7])) == (expected, [3, 7])


def test_the_label_tells_what_is_inside():
    label = read_header(pack(Records([None, b"k"], [b"v", None], [9, 4])))
    assert label[:4] == (NULL_KEYS | TOMBSTONES, 2, 4, 9)
    assert read_header(pack(Records((), (), ())))[:4] == (0, 0, -1, -1)


def test_compression_is_kept_only_where_it_pays():
    noise = seeded(1).randbytes(10_000)
    even, uneven = pack(records(b"x" * 10_000)), pack(records(noise))
    assert read_header(even).flags & COMPRESSED
    assert len(even) < 1000
    assert not read_header(uneven).flags & COMPRESSED
    assert unpack(uneven)[0].values == [noise]


def test_much_is_packed_in_parts(monkeypatch):
    monkeypatch.setattr(record_format, "_MAX_BYTES", 1000)
    monkeypatch.setattr(record_format, "_MAX_RECORDS", 50)
    many = records(*(b"%d" % i for i in range(120)), b"x" * 5000, *(b"%d" % i for i in range(40)))
    parts = [unpack(part)[0] for part in pack_parts(many)]
    assert [value for part in parts for value in part.values] == list(many.values)
    assert [time for part in parts for time in part.timestamps] == list(many.timestamps)
    assert max(len(part) for part in parts) <= 50
    assert [b"x" * 5000] in [part.values for part in parts]


@pytest.mark.slow
def test_packing_does_not_import_pandas():
    use = "from headrace.log.chunk_format import *; unpack(pack(Records([b'k'], [b'v'], [1])))"
    program = f"import sys; {use}; print('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"False\n"


def test_offsets_that_lead_out_of_the_chunk_are_not_followed():
    packed = bytearray(pack(Records([b"k"], [b"v"], [10])))
    place = packed.rindex(struct.pack("<ii", 0, 1))  # where the value begins and ends
    packed[place + 4 : place + 8] = struct.pack("<i", 1 << 30)
    packed[4:8] = struct.pack("<I", crc32(packed[8:]))  # as who forges a chunk can
    with pytest.raises(StateCorruptedError, match="out of bounds"):
        unpack(bytes(packed))
