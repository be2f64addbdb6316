"""Deltas: what they say, what they weigh as bytes, and what several of them make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StateCorruptedError
from headrace.state.delta import Delta, apply, decode_delta, encode_delta, merge
from headrace.state.engine import MemoryEngine, Version
from tests.state.harness import contents

changes = st.dictionaries(st.binary(min_size=1, max_size=3), st.none() | st.binary(max_size=3), max_size=6)
versions = st.builds(Version, st.integers(0, 2**63), st.text(max_size=5))
deltas = st.builds(lambda version, some: Delta(version, tuple(sorted(some.items()))), versions, changes)


def numbered(batches: list[dict[bytes, bytes | None]]) -> list[Delta]:
    return [Delta(Version(number, "x"), tuple(sorted(some.items()))) for number, some in enumerate(batches)]


@given(deltas)
def test_a_delta_survives_being_bytes(delta):
    assert decode_delta(encode_delta(delta)) == delta


def test_the_bytes_of_a_delta_do_not_change():
    delta = Delta(Version(258, "é"), ((b"a", b"1"), (b"bb", None), (b"c", b"")))
    assert encode_delta(delta).hex() == (
        "48524431"  # HRD1
        "16e1b4c008ba422195d4c38c70b5c833"  # digest of the rest
        "00000000000001020002c3a9"  # version 258, attempt of 2 bytes
        "00000003"
        "000000010000000200000001"
        "00000001ffffffff00000000"
        "6162626331"
    )


@pytest.mark.parametrize("place", [0, 4, 20, 30, 45, -1])
def test_a_flipped_bit_is_found(place):
    raw = bytearray(encode_delta(Delta(Version(1, "x"), ((b"key", b"value"),))))
    raw[place] ^= 1
    with pytest.raises(StateCorruptedError):
        decode_delta(bytes(raw))


def test_a_delta_that_was_cut_off_is_found():
    raw = encode_delta(Delta(Version(1, "x"), ((b"key", b"value"),)))
    for length in range(len(raw)):
        with pytest.raises(StateCorruptedError):
            decode_delta(raw[:length])


@given(st.lists(changes, min_size=1, max_size=4))
def test_a_merged_delta_does_what_its_parts_do_one_after_the_other(batches):
    parts, one_by_one, at_once, snapshot = numbered(batches), MemoryEngine(), MemoryEngine(), MemoryEngine()
    for delta in parts:
        apply(delta, one_by_one)
    apply(merge(parts), at_once)
    apply(merge(parts, from_nothing=True), snapshot)
    assert contents(one_by_one) == contents(at_once) == contents(snapshot)
    assert one_by_one.version == at_once.version == snapshot.version
    assert all(value is not None for _, value in merge(parts, from_nothing=True).changes)


def test_nothing_cannot_be_merged():
    with pytest.raises(ValueError, match="no delta"):
        merge([])


def test_a_delta_is_applied_only_to_an_older_version():
    engine = MemoryEngine()
    engine.commit([], Version(5, "x"))
    with pytest.raises(StateCorruptedError, match="version 5 does not follow version 5"):
        apply(Delta(Version(5, "y"), ()), engine)
