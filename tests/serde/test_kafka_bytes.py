"""Bytes against those of Kafka's own serdes, version 4.3.0: `vectors/` holds what they wrote and read."""

import json
import math
from pathlib import Path
from uuid import UUID

import pytest

from headrace import serde
from headrace.model.windows import Window, Windowed
from headrace.serde import list_of, session_windowed, windowed

VECTORS = Path(__file__).parent / "vectors"
SERDES = {
    name: getattr(serde, name)
    for name in ("STRING", "BYTES", "LONG", "INTEGER", "SHORT", "DOUBLE", "FLOAT", "BOOLEAN", "UUID")
}


def vectors(name):
    with (VECTORS / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def serde_named(name) -> serde.Serde:
    outer, _, inside = name.rstrip(")").partition("(")
    inner, _, size = inside.partition(", ")
    match outer:
        case "list_of":
            return list_of(SERDES[inner])
        case "windowed":
            return windowed(SERDES[inner], int(size))
        case "session_windowed":
            return session_windowed(SERDES[inner])
        case _:
            return SERDES[outer]


def value_of(name, value):
    """JSON has no bytes, UUIDs, NaN and infinities: the vectors have them as text."""
    inner = name.partition("(")[2].rstrip(")")
    if value is None:
        return None
    if name.startswith("list_of"):
        return [value_of(inner, entry) for entry in value]
    if "windowed" in name:
        key, start, end = value
        return Windowed(key, Window(start, end))
    read = {"BYTES": bytes.fromhex, "UUID": UUID, "DOUBLE": float_of, "FLOAT": float_of}.get(name)
    return read(value) if read else value


def float_of(text):
    words = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    return words[text] if text in words else float.fromhex(text)


def same(left, right):
    return left == right or (isinstance(left, float) and math.isnan(left) and math.isnan(right))


@pytest.mark.parametrize("vector", vectors("kafka_serdes.jsonl"), ids=lambda v: f"{v['serde']}-{v['value']!a}")
def test_encodes_and_decodes_as_kafka_does(vector):
    serde, value, raw = serde_named(vector["serde"]), value_of(vector["serde"], vector["value"]), vector["hex"]
    assert serde.encode(value).hex() == raw
    if b"?" not in bytes.fromhex(raw):  # a lone surrogate does not come back
        assert same(serde.decode(bytes.fromhex(raw)), value)


@pytest.mark.parametrize("vector", vectors("broken_utf8.jsonl"), ids=lambda v: v["hex"])
def test_broken_utf8_decodes_as_in_java(vector):
    assert serde.STRING.decode(bytes.fromhex(vector["hex"])) == vector["value"]


def test_two_surrogates_that_make_a_pair_are_one_character():
    assert serde.STRING.encode("\ud83d\ude00") == "😀".encode()
