"""Serdes: how keys and values become bytes, and come back."""

from headrace.serde.avro import avro, avro_schema
from headrace.serde.debezium import RowChange, connect_json, debezium, debezium_key
from headrace.serde.json import JSON, json_of
from headrace.serde.json_schema import json_schema
from headrace.serde.lists import list_of
from headrace.serde.primitives import BOOLEAN, BYTES, DOUBLE, FLOAT, INTEGER, LONG, SHORT, STRING, UUID, VOID
from headrace.serde.protobuf import protobuf
from headrace.serde.protocol import Serde, serde_of
from headrace.serde.windowed import session_windowed, windowed

__all__ = [
    "BOOLEAN", "BYTES", "DOUBLE", "FLOAT", "INTEGER", "JSON", "LONG", "SHORT", "STRING", "UUID", "VOID",
    "RowChange", "Serde", "avro", "avro_schema", "connect_json", "debezium", "debezium_key", "json_of",
    "json_schema", "list_of", "protobuf", "serde_of", "session_windowed", "windowed",
]  # fmt: skip
