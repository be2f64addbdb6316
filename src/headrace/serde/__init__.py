"""Serdes: how keys and values become bytes, and come back."""

from headrace.serde.debezium import RowChange, debezium, debezium_key
from headrace.serde.json import JSON, json_of
from headrace.serde.lists import list_of
from headrace.serde.primitives import BOOLEAN, BYTES, DOUBLE, FLOAT, INTEGER, LONG, SHORT, STRING, UUID, VOID
from headrace.serde.protocol import Serde, serde_of
from headrace.serde.windowed import session_windowed, windowed

__all__ = [
    "BOOLEAN", "BYTES", "DOUBLE", "FLOAT", "INTEGER", "JSON", "LONG", "SHORT", "STRING", "UUID", "VOID",
    "RowChange", "Serde", "debezium", "debezium_key", "json_of", "list_of", "serde_of", "session_windowed", "windowed",
]  # fmt: skip
