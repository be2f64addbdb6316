"""Bytes that Headrace never wrote give the error that a decoder promises, and no other; none is taken for valid memory.

`make test-fuzz SECONDS=600` tries each decoder for ten minutes, with DECODERS=manifest,delta only these. `make test`
tries the kinds of bytes that come from outside for ten seconds each.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given

from tests.fuzz.decoders import DECODERS, chosen_decoders, seconds_of
from tests.fuzz.mutations import fuzzed, hostile, repeat


@pytest.mark.parametrize("name", chosen_decoders())
def test_hostile_bytes_give_the_error_of_the_decoder(name: str):
    decode, valid, errors, seal = DECODERS[name]
    for raw in valid:
        decode(raw)

    @fuzzed(100)
    @given(hostile(valid))
    def try_bytes(raw: bytes) -> None:
        with suppress(*errors):
            decode(raw)
        if seal is not None:
            with suppress(*errors):
                decode(seal(raw))

    repeat(try_bytes, seconds_of(name))
