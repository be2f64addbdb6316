"""Hostile bytes: anything, and valid bytes that were changed in one to four places."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.profiles import FAST, examples

SECONDS = float(os.environ.get("HEADRACE_FUZZ_SECONDS", "0"))  # for each decoder and address: `make test-fuzz`
# For each kind of bytes from outside, without HEADRACE_FUZZ_SECONDS: `make test`, `make test-fuzz KIND_SECONDS=600`.
KIND_SECONDS = 0.0 if FAST else float(os.environ.get("HEADRACE_FUZZ_KIND_SECONDS", "10"))
_NUMBERS = {"B": (0, 127, 255), "I": (0, 1, 0x7FFF_FFFF, 0xFFFF_FFFF), "Q": (0, (1 << 63) - 1, (1 << 64) - 1)}
_EXTREMES = [
    *(struct.pack(order + size, number) for order in "<>" for size, some in _NUMBERS.items() for number in some),
    *(b"\x91" * 2000, b"[" * 2000, b'{"a":' * 2000),  # deeply nested
    *(b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"),  # MessagePack: an array and bytes of 4 GiB
]


def fuzzed(full: int) -> settings:
    """The settings of a test that tries so many examples each time."""
    return settings(
        max_examples=500 if SECONDS else examples(full),
        deadline=None,
        database=None,
        derandomize=False,  # else every repetition would try the same examples where CI=true
        suppress_health_check=[HealthCheck.too_slow],
    )


def repeat(test: Callable[[], object], seconds: float) -> None:
    """Runs a test of hypothesis once, and again until HEADRACE_FUZZ_SECONDS are over, or else `seconds`."""
    end = time.monotonic() + (SECONDS or seconds)
    test()
    while time.monotonic() < end:
        test()


@st.composite
def mutated(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """Valid bytes with a few changes: cut, repeated, overwritten, or with something put in."""
    raw = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(raw)))
        end = draw(st.integers(start, min(len(raw), start + 40)))
        match draw(st.sampled_from(["cut", "drop", "repeat", "flip", "extreme", "bytes"])):
            case "cut":
                del raw[start:]
            case "drop":
                del raw[start:end]
            case "repeat":
                raw[end:end] = raw[start:end]
            case "flip" if start < len(raw):
                raw[start] ^= 1 << draw(st.integers(0, 7))
            case "extreme":
                put = draw(st.sampled_from(_EXTREMES))
                raw[start : start + draw(st.sampled_from([0, len(put)]))] = put
            case _:
                raw[start:end] = draw(st.binary(max_size=20))
    return bytes(raw)


def hostile(valid: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=100), mutated(valid))
