"""Every decoder of bytes that come from outside, with valid bytes, and the errors that it may raise."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID
from zlib import crc32

import msgspec
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct
from google.protobuf.wrappers_pb2 import StringValue

from headrace import serde
from headrace.checkpoint.files import BlobRef, DeltaRef, FileRef, digest_of, encode_checksummed
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.manifest import (
    MAGIC,
    Carried,
    Changelog,
    Manifest,
    Outbox,
    TaskChange,
    decode_manifest,
    encode_manifest,
)
from headrace.checkpoint.outbox import (
    ROWS_1,
    decode_outbox,
    decode_rows,
    encode_outbox,
    encode_rows,
    merge_outboxes,
    read_records,
)
from headrace.checkpoint.ownership import MAGIC as LEASE_MAGIC
from headrace.checkpoint.ownership import LeaseRecord, decode_lease
from headrace.checkpoint.receipt import Receipt, decode_receipt, encode_receipt
from headrace.checkpoint.recovery import MAGIC as IDENTITY_MAGIC
from headrace.checkpoint.recovery import Identity, decode_identity
from headrace.connect.pgoutput import decode_message
from headrace.connect.postgres_changes import decode_field
from headrace.connect.source import decode_ownership
from headrace.errors import (
    CheckpointCorruptedError,
    LogCorruptedError,
    SerializationError,
    StateCorruptedError,
    StreamsError,
)
from headrace.log.chunk_format import pack, unpack
from headrace.log.kafka.broker_version import parse_versions
from headrace.log.kafka.markers import marker_partition, parse_markers
from headrace.log.protocol import LogRow, Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.windows import Window, Windowed
from headrace.query.parameters import parse_key
from headrace.runtime.rows import PartitionBatch
from headrace.serde import internal
from headrace.serde.internal import (
    Instruction,
    Response,
    Subscription,
    change_serde,
    response_serde,
    subscription_serde,
)
from headrace.spark import slot_messages, wire_format
from headrace.state.changelog_records import encode_session_key, encode_window_key, fill
from headrace.state.delta import Delta, decode_delta, encode_delta
from headrace.state.engine import MemoryEngine, Version
from headrace.state.spec import KeyValueKind, Kind, LruKind, SessionKind, StoreSpec, VersionedKind, WindowKind
from headrace.web.ingest import HttpSource, parse_body
from headrace.web.openapi import OPERATIONS
from headrace.web.paging import PageToken, decode_token, encode_token
from tests.checkpoint.cluster import ME
from tests.fuzz.mutations import KIND_SECONDS
from tests.state.harness import opened_state

RECORDS = Records([b"k", None], [b"v" * 300, None], [5, -1], [(("h", b"1"), ("h", None)), ()])
REF = BlobRef(7, 4, 3, b"d" * 16)
TASK = TaskId(0, 1)


class Decoder(NamedTuple):
    decode: Callable[[bytes], Any]
    valid: Sequence[bytes]
    errors: tuple[type[Exception], ...]
    seal: Callable[[bytes], bytes] | None = None  # puts the checksum right


# ------------------------------------------------------------------------------------------------------- checkpoints
def seal_manifest(raw: bytes) -> bytes:
    index = raw[4:-20]
    return MAGIC + index + digest_of(index) + struct.pack(">I", len(index))


def sealed(magic: bytes) -> Callable[[bytes], bytes]:
    return lambda raw: encode_checksummed(magic, raw[len(magic) + 16 :])


def seal_chunk(raw: bytes) -> bytes:
    return b"HRC1" + struct.pack("<I", crc32(raw[8:])) + raw[8:]


def read_outbox(raw: bytes) -> None:
    """As a delivery does: the records of a section, and those of two merged."""
    sections = decode_outbox(raw)
    for section in sections:
        read_records(section)
    merge_outboxes([(0, sections), (1, sections)], lambda topic: 3)


MANIFESTS = [
    Manifest(number=7, predecessor=b"", since=7, checkpoint="c", application="a", epoch=1, clock=0, delivered=6),
    Manifest(
        number=7, predecessor=b"p" * 16, since=3, checkpoint="c", application="a", epoch=1, clock=1 << 40, delivered=-1,
        tasks=(TaskChange(TASK, True, (DeltaRef(7, "x", 2, REF),), 5),), positions={"t": {0: 3}}, topics={"t": "id"},
        outboxes=(Outbox(TASK, REF),), carried=(Carried(TASK, TaskId(1, 0), BlobRef("f", 0, 1, b"d" * 16)),),
        dropped={"late": 2}, fingerprint=Fingerprint((), (), {}), changelogs={"s": Changelog("c", (1, 2))},
    ),
]  # fmt: skip
RECEIPTS = [
    Receipt(task=TASK, level=0, number=7, attempt="x", base=None),
    Receipt(
        task=TASK, level=1, number=7, attempt="x", base=Version(6, "w"), delta=b"abc", entries=1,
        outbox=FileRef("f", 3, b"d" * 16), carried={TaskId(1, 0): b"abc"}, sent={TASK: 2}, consumed={"w": 1},
        positions={TopicPartition("t", 0): 4},
    ),
]  # fmt: skip
OUTPUTS: list[Any] = [
    ("t", 0, b"k", b"v", 5, (), (5, "t", 0, 1)),
    ("t", None, None, None, 6, (("h", b"1"),), ()),
    ("u", 1, b"k" * 600, b"v", 7, (), (6, "t", 0, 2)),
]
BATCH = PartitionBatch(TopicPartition("t", 0), [7, 8], RECORDS, [(5, "t", 0, 7), (6, "t", 0, 8)])
COUNTS = PartitionBatch(TopicPartition("t", 0), [7], Records([b"k"], [None], [5]), [(5, "t", 0, 7)], [3])
EARLIER_ROWS = ROWS_1 + msgspec.msgpack.encode([("t#counted", 0, 7, b"k", bytes(8), 5, (), (5, "t", 0, 7))])

CHECKPOINTS = {
    "manifest": Decoder(
        lambda raw: decode_manifest(raw, "m"), [encode_manifest(m) for m in MANIFESTS], (CheckpointCorruptedError,),
        seal_manifest,
    ),
    "delta": Decoder(
        decode_delta, [encode_delta(Delta(Version(7, "try"), ((b"a", b"1"), (b"b", None), (b"c", b""))))],
        (StateCorruptedError,), sealed(b"HRD1"),
    ),
    "lease": Decoder(
        lambda raw: decode_lease(raw, "o"),
        [encode_checksummed(LEASE_MAGIC, msgspec.json.encode(LeaseRecord(ME, 5, 10, "t", {"a": 1})))],
        (CheckpointCorruptedError,), sealed(LEASE_MAGIC),
    ),
    "identity": Decoder(
        decode_identity, [encode_checksummed(IDENTITY_MAGIC, msgspec.json.encode(Identity("c", "a")))],
        (CheckpointCorruptedError,), sealed(IDENTITY_MAGIC),
    ),
    "receipt": Decoder(decode_receipt, [encode_receipt(r) for r in RECEIPTS], (StreamsError,)),
    "outbox": Decoder(
        read_outbox,
        [encode_outbox(OUTPUTS, {"t": None, "u": 2}.get, packed=packed) for packed in (True, False)],
        (StateCorruptedError,),
    ),
    "rows": Decoder(decode_rows, [encode_rows([BATCH, COUNTS]), EARLIER_ROWS], (CheckpointCorruptedError,)),
    "chunk": Decoder(
        unpack, [pack(RECORDS), pack(RECORDS, [7, 9]), pack(Records([b"k"] * 90, [b"v" * 90] * 90, list(range(90))))],
        (StateCorruptedError,), seal_chunk,
    ),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- serdes
@dataclass
class Row:
    id: int
    name: str | None = None


CHANGE = b'{"before":null,"after":{"id":1,"name":"x"},"source":{"db":"d"},"op":"u","ts_ms":5,"transaction":null}'


def decoder_of(found: serde.Serde[Any], *values: Any, valid: Sequence[bytes] = ()) -> Decoder:
    # A RecursionError comes from JSON that is nested thousands of times; the handler of the record takes it, too.
    return Decoder(found.decode, [*valid, *(found.encode(value) for value in values)], (ValueError, RecursionError))


WINDOWED = Windowed("k", Window(5, 15))
SERDES = {
    f.name: decoder_of(f, *values)
    for f, values in {
        serde.STRING: ["", "käse"], serde.LONG: [1 << 40], serde.INTEGER: [5], serde.SHORT: [5], serde.DOUBLE: [1.5],
        serde.FLOAT: [1.5], serde.BOOLEAN: [True], serde.UUID: [UUID(int=5)],
        serde.JSON: [{"a": [1, None, "x"]}], serde.json_of(Row): [Row(1, "x")],
        serde.list_of(serde.LONG): [[1, None, 3]], serde.list_of(serde.STRING): [["a", None, ""]],
        serde.list_of(serde.list_of(serde.UUID)): [[[None]]],
        serde.windowed(serde.STRING, 10): [WINDOWED], serde.session_windowed(serde.LONG): [Windowed(7, Window(5, 15))],
        internal.UNDECLARED: ["x", (1, 2), {"a": [1]}],
        change_serde(serde.STRING): [("n", "o", True), (None, None, False)],
        subscription_serde(serde.STRING): [Subscription(b"#", Instruction.DELETE_KEY_AND_PROPAGATE, "k", 2)],
        response_serde(serde.LONG): [Response(b"#", 5, 2), Response(None, None)],
        serde.debezium_key("id"): [7], serde.debezium_key("id", "line"): [(7, 1)],
    }.items()
} | {
    "debezium()": decoder_of(serde.debezium(), valid=[CHANGE, b'{"schema":{},"payload":' + CHANGE + b"}"]),
    "debezium(Row)": decoder_of(serde.debezium(Row), valid=[CHANGE]),
    "connect_json()": decoder_of(serde.connect_json(), {"id": 1}, valid=[b'{"id":1}']),
    "connect_json(Row)": decoder_of(serde.connect_json(Row), Row(1, "x")),
}  # fmt: skip


# ------------------------------------------------------------------------------------------- serdes with a registry
def decoder_of_library(found: serde.Serde[Any], *values: Any) -> Decoder:
    """Libraries raise errors of many kinds, which the handler of the record gets; but none may use up the memory."""

    def decode(raw: bytes) -> None:
        try:
            found.decode(raw)
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(str(error)) from error

    return Decoder(decode, [found.encode(value) for value in values], (ValueError,))


@dataclass
class Order:
    id: int
    lines: list[Row]
    notes: dict[str, str]
    weight: float | None = None


REGISTRY: dict[str, Any] = {"registry": "mock://fuzz", "subject": "record"}
READER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "double"}],
}  # fewer fields than were written
ORDER = Order(7, [Row(1, "x"), Row(2)], {"a": "b"}, 1.5)
SCHEMA = serde.avro_schema(Order)
REGISTRY_SERDES = {
    "avro(Order)": decoder_of_library(serde.avro(Order, **REGISTRY), ORDER),
    "avro()": decoder_of_library(serde.avro(schema=SCHEMA, **REGISTRY), msgspec.to_builtins(ORDER)),
    "avro(reader)": decoder_of_library(
        serde.avro(schema=SCHEMA, reader=READER, **REGISTRY), msgspec.to_builtins(ORDER)
    ),
    "protobuf(StringValue)": decoder_of_library(serde.protobuf(StringValue, **REGISTRY), StringValue(value="hello")),
    "protobuf(Struct)": decoder_of_library(
        serde.protobuf(Struct, **REGISTRY), ParseDict({"a": [1, None, {"b": "c"}]}, Struct())
    ),
    "json_schema(Order)": decoder_of_library(serde.json_schema(Order, **REGISTRY), ORDER),
    "json_schema()": decoder_of_library(
        serde.json_schema(schema={"title": "T", "type": "object", "required": ["id"]}, **REGISTRY), {"id": 5}
    ),
}


# --------------------------------------------------------------------------------------------------------- changelogs
def fill_store(kind: Kind) -> Callable[[bytes], Any]:
    """Fills a store from records: 20 bytes are a key, the next 8 its value."""

    def run(raw: bytes) -> None:
        state = opened_state(StoreSpec("s", kind, serde.STRING, serde.LONG), MemoryEngine())
        fill(state, "s", [(raw[at : at + 20], raw[at + 20 : at + 28] or None, 5) for at in range(0, len(raw), 28)])
        state.commit(Version(0, "a"))

    return run


KINDS: dict[str, tuple[Kind, bytes]] = {
    "key-value": (KeyValueKind(timestamped=True), b"k" * 20),
    "LRU": (LruKind(3), b"k" * 20),
    "window": (WindowKind(100, 10), encode_window_key(b"k" * 8, 5)),
    "session": (SessionKind(100), encode_session_key(b"k" * 4, 5, 9)),
    "versioned": (VersionedKind(100), b"k" * 20),
}
CHANGELOGS = {
    f"changelog of a {name} store": Decoder(fill_store(kind), [2 * (key + bytes(8)) + key], (SerializationError,))
    for name, (kind, key) in KINDS.items()
}


# -------------------------------------------------------------------------------------------- topics of Headrace's own
def rows_of(raw: bytes) -> list[LogRow]:
    """Records, one in each line: key, value, and the headers `line` and `shares`, with tabs between them."""
    rows: list[LogRow] = []
    for offset, line in enumerate(raw.split(b"\n")):
        key, value, owner, shares = [field or None for field in (*line.split(b"\t", 3), b"", b"", b"", b"")[:4]]
        rows.append((offset, key, value, 5, (("line", owner), ("shares", shares))))
    return rows


def read_position(raw: bytes) -> Any:
    position, _, owner = raw.partition(b"\n")
    return decode_ownership(position or None, owner or None, TopicPartition("shop-position", 0))


TOPICS = {
    "markers of deliveries": Decoder(
        lambda raw: parse_markers(rows_of(raw), marker_partition("a")),
        [
            b"delivered\t7\tone\t2\ndelivered t-0\t8\nbarrier\t\ttwo",
            b"delivered",
            b"probe\nbarrier 1\ndelivered\t-1\tx",
        ],
        (LogCorruptedError,),
    ),
    "position of a source": Decoder(
        read_position,
        [b'{"lsn": 7, "segments": [["1:2:", null]], "done": false}\nab12', b'[[5, "d"]]', b"7\nowner", b"\nowner"],
        (LogCorruptedError,),
    ),
    "versions of a broker": Decoder(
        parse_versions, [struct.pack(">ihihhhhhh", 7, 0, 2, 1, 0, 17, 18, 0, 4)], (ValueError,)
    ),
}


# ------------------------------------------------------------------------------------------------------------ messages
SLOT_ROWS = wire_format.encode(wire_format.Rows(1, 0, 0, "a", encode_rows([BATCH])))
MESSAGES = {
    "message for the driver": Decoder(
        slot_messages.decode_for_driver,
        [
            slot_messages.encode_message(message)
            for message in (
                slot_messages.Hello(1, "h", 2, 3), slot_messages.LocalState([(0, 1, 2)]), slot_messages.Heartbeat(),
                slot_messages.BatchDone(1, [b"C"], [1.5], [0.5]), slot_messages.BatchBroken(1, "why", None),
            )
        ],
        (ConnectionError,),
    ),
    "message for a slot": Decoder(
        slot_messages.decode_for_slot,
        [
            slot_messages.encode_message(message)
            for message in (
                slot_messages.Start(1, 5.0, b"job", [slot_messages.Peer(1, 2, "h", 3)]),
                slot_messages.RunBatch(1, [0], [b""]), slot_messages.SlotRows(1, 0, 1, True, [(1, SLOT_ROWS)]),
            )
        ],
        (ConnectionError,),
    ),
    "wire message": Decoder(
        wire_format.decode,
        [
            SLOT_ROWS, wire_format.encode(wire_format.Batch(7, 0)),
            wire_format.encode(
                wire_format.Orders(0, 7, 0, [wire_format.Order(0, 1, (6, "w"), [], False, True, False)], None, -1)
            ),
        ],
        (StreamsError,),
    ),
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- HTTP
def of_text(decode: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda raw: decode(raw.decode("latin-1"))


PARAMETERS = {
    "page token": Decoder(of_text(decode_token), [encode_token(PageToken(7, (b"key", 50))).encode()], (StreamsError,)),
    **{
        f"key of {found.name}": Decoder(of_text(partial(parse_key, serde=found)), [text], (SerializationError,))
        for found, text in {
            serde.STRING: b"a", serde.LONG: b"12", serde.JSON: b'{"a": [1, null]}', serde.BYTES: b"eA==",
            serde.UUID: b"00000000-0000-0000-0000-000000000005",
        }.items()
    },
}  # fmt: skip
# ---------------------------------------------------------------------------------------------------------- PostgreSQL
RELATION = (
    b"R" + struct.pack(">I", 9) + b"public\0orders\0d" + struct.pack(">HB", 1, 1) + b"id\0" + struct.pack(">Ii", 23, -1)
)
POSTGRES_TYPES = (16, 20, 23, 25, 114, 700, 1700, 3802)  # boolean, integers, text, JSON, floats, numeric


def decode_value(raw: bytes) -> Any:
    """The first byte is the type, the rest is the text."""
    kind = POSTGRES_TYPES[raw[0] % len(POSTGRES_TYPES)] if raw else 25
    return decode_field(kind, raw[1:].decode(errors="replace"))


POSTGRES = {
    "pgoutput": Decoder(
        decode_message,
        [
            b"B" + struct.pack(">QqI", 500, 1_000_000, 77), b"C" + struct.pack(">BQQq", 0, 1, 2, 3), RELATION,
            b"U" + struct.pack(">IcHcci", 9, b"N", 2, b"n", b"t", 1) + b"x",
        ],
        (StreamsError,),
    ),
    "value of PostgreSQL": Decoder(
        decode_value,
        [
            b"\x00t", b"\x01-7", b"\x02512", b"\x03text", b'\x04{"a": [1, null, "x"]}', b"\x05NaN", b"\x061.50",
            b"\x07[1.5e9]",
        ],
        (SerializationError,),
    ),
}  # fmt: skip
# --------------------------------------------------------------------------------------------------------- HTTP source
SOURCE = HttpSource("s", token="t", key_of="user", timestamp_of="at", key=serde.STRING)  # noqa: S106 - of no server
BODIES = {
    "body for an HTTP source": Decoder(
        partial(parse_body, SOURCE, is_lines=False), [b'{"user": "ada", "at": 5, "page": [1, null]}'], (ValueError,)
    ),
    "lines for an HTTP source": Decoder(
        partial(parse_body, SOURCE, is_lines=True),
        [b'{"user": "ada", "at": 5}\n\n{"user": "bob", "at": null}\r\n'],
        (ValueError,),
    ),
}
DECODERS = {
    **CHECKPOINTS, **SERDES, **REGISTRY_SERDES, **CHANGELOGS, **TOPICS, **MESSAGES, **PARAMETERS, **POSTGRES, **BODIES,
}  # fmt: skip

# In `make test` each of these kinds gets `KIND_SECONDS`, which its decoders share; the others get 100 examples each.
HTTP = [*PARAMETERS, *BODIES, *OPERATIONS]  # the addresses are in test_http.py
KINDS_WITH_TIME = (
    ["manifest"],
    ["delta"],
    ["receipt"],
    ["chunk"],
    list(CHANGELOGS),
    [name for name in SERDES if "debezium" in name],
    HTTP,
)


def seconds_of(name: str) -> float:
    """The time for a decoder or an address in `make test`.

    >>> seconds_of("manifest") == KIND_SECONDS == 5 * seconds_of("changelog of a window store")
    True
    >>> seconds_of("lease")
    0.0
    """
    return next((KIND_SECONDS / len(kind) for kind in KINDS_WITH_TIME if name in kind), 0.0)


def chosen_decoders() -> list[str]:
    """The names of the decoders to try: all, or those that contain a word of HEADRACE_FUZZ_DECODERS.

    >>> os.environ["HEADRACE_FUZZ_DECODERS"] = "delta,page"
    >>> chosen_decoders()
    ['delta', 'page token']
    """
    words = [word.strip() for word in os.environ.get("HEADRACE_FUZZ_DECODERS", "").split(",") if word.strip()]
    unknown = [word for word in words if not any(word in name for name in DECODERS)]
    if unknown:
        raise ValueError(f"no decoder is called {', '.join(unknown)}; there are: {', '.join(DECODERS)}")
    return [name for name in DECODERS if not words or any(word in name for word in words)]
