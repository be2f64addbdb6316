"""Records as lines, by the properties of Kafka's console consumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from headrace.cli.forms import Form, in_json
from headrace.cli.printing import Failed, WrongUsage
from headrace.log import ConsumerRecord

KNOWN = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
    "key.deserializer": None,
    "value.deserializer": None,
}


class LineWriter:
    """A record as one line: timestamp, partition, offset, headers, key, value, as far as they are asked for."""

    def __init__(self, properties: Mapping[str, str], key: Form, value: Form, time_types: Mapping[str, str]) -> None:
        unknown = sorted(properties.keys() - KNOWN.keys())
        if unknown:
            raise WrongUsage(f"there is no property {unknown[0]!r}: known are {', '.join(KNOWN)}")
        given = {name: str(text) for name, text in {**KNOWN, **properties}.items()}
        self._prints = {name[6:] for name, text in given.items() if name[:6] == "print." and text.lower() == "true"}
        self._separator, self._end = _raw(given["key.separator"]), _raw(given["line.separator"])
        self._headers_separator, self._null = _raw(given["headers.separator"]), _raw(given["null.literal"])
        self._key, self._value, self._time_types = key, value, time_types

    def write(self, record: ConsumerRecord) -> bytes:
        """The line, with its end."""
        parts: list[bytes] = []
        if "timestamp" in self._prints:
            parts.append(f"{self._time_types.get(record.topic, 'CreateTime')}:{record.timestamp}".encode())
        if "partition" in self._prints:
            parts.append(f"Partition:{record.partition}".encode())
        if "offset" in self._prints:
            parts.append(f"Offset:{record.offset}".encode())
        if "headers" in self._prints:
            shown = [name.encode() + b":" + (self._null if raw is None else raw) for name, raw in record.headers]
            parts.append(self._headers_separator.join(shown) or b"NO_HEADERS")
        if "key" in self._prints:
            parts.append(self._shown(self._key, record.key, record, "key"))
        if "value" in self._prints:
            parts.append(self._shown(self._value, record.value, record, "value"))
        return self._separator.join(parts) + self._end

    def write_json(self, record: ConsumerRecord) -> bytes:
        """All of the record as one line of JSON."""
        return orjson.dumps({
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "headers": [[name, in_json(value)] for name, value in record.headers],
            "key": in_json(_decoded(self._key, record.key, record, "key")),
            "value": in_json(_decoded(self._value, record.value, record, "value")),
        }) + b"\n"  # fmt: skip

    def _shown(self, form: Form, raw: bytes | None, record: ConsumerRecord, what: str) -> bytes:
        value = _decoded(form, raw, record, what)
        return self._null if value is None else form.show(value)


def _decoded(form: Form, raw: bytes | None, record: ConsumerRecord, what: str) -> Any:
    if raw is None:
        return None
    try:
        return form.serde.decode(raw)
    except Exception as error:
        place = f"offset {record.offset} of {record.topic}-{record.partition}"
        raise Failed(
            f"the {what} at {place} is no {form.serde.name}: {error}; --{what}-deserializer says what it is, and "
            "--skip-message-on-error goes on"
        ) from error


def _raw(text: str) -> bytes:
    return text.replace("\\t", "\t").replace("\\n", "\n").encode(errors="surrogateescape")
