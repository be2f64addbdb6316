"""Lines that become records, by the properties of Kafka's console producer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.cli.forms import Form
from headrace.cli.printing import Failed, WrongUsage

Headers = tuple[tuple[str, bytes | None], ...]
KNOWN = {
    "parse.key": "false",
    "key.separator": "\t",
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "null.marker": None,
    "ignore.error": "false",
}


class Sent(NamedTuple):
    """What a line says is to be sent."""

    key: Any
    value: Any
    headers: Headers


@dataclass(frozen=True, slots=True)
class LineReader:
    """Takes lines apart: headers, key and value, in this order, as far as they are asked for."""

    key: Form
    value: Form
    parses_key: bool = False
    key_separator: str = "\t"
    parses_headers: bool = False
    headers_delimiter: str = "\t"
    headers_separator: str = ","
    header_key_separator: str = ":"
    null_marker: str | None = None
    ignores_errors: bool = False

    @classmethod
    def of(cls, properties: Mapping[str, str], key: Form, value: Form) -> LineReader:
        """By Kafka's names of the properties."""
        unknown = sorted(properties.keys() - KNOWN.keys())
        if unknown:
            raise WrongUsage(f"there is no property {unknown[0]!r}: known are {', '.join(KNOWN)}")
        given = {**KNOWN, **properties}
        flags = {name: str(given[name]).lower() == "true" for name in ("parse.key", "parse.headers", "ignore.error")}
        return cls(
            key,
            value,
            flags["parse.key"],
            _unescaped(given["key.separator"]),
            flags["parse.headers"],
            _unescaped(given["headers.delimiter"]),
            _unescaped(given["headers.separator"]),
            _unescaped(given["headers.key.separator"]),
            given["null.marker"],
            flags["ignore.error"],
        )

    def read(self, line: str, number: int) -> Sent:
        """What a line says; `number` is for the sentence if it says nothing that can be sent."""
        rest, headers, key = line, (), None
        if self.parses_headers:
            text, rest = self._split(rest, self.headers_delimiter, "headers delimiter", number)
            headers = self._headers(text, number)
        if self.parses_key:
            text, rest = self._split(rest, self.key_separator, "key separator", number)
            key = self._parsed(self.key, text, "key", number)
        return Sent(key, self._parsed(self.value, rest, "value", number), headers)

    def _split(self, text: str, separator: str, what: str, number: int) -> tuple[str, str]:
        first, found, rest = text.partition(separator)
        if found:
            return first, rest
        if self.ignores_errors:
            return ("" if what == "headers delimiter" else self.null_marker or ""), text
        raise Failed(f"no {what} found on line number {number}: {text!r}; {what} is {separator!r}, a property sets it")

    def _headers(self, text: str, number: int) -> Headers:
        if not text or text == self.null_marker:
            return ()
        found: list[tuple[str, bytes | None]] = []
        for part in text.split(self.headers_separator):
            name, separator, value = part.partition(self.header_key_separator)
            if not separator and not self.ignores_errors:
                raise Failed(f"no header key separator found in pair {part!r} on line number {number}")
            found.append((name, None if value == self.null_marker else value.encode(errors="surrogateescape")))
        return tuple(found)

    def _parsed(self, form: Form, text: str, what: str, number: int) -> Any:
        if self.null_marker is not None and text == self.null_marker:
            return None
        try:
            return form.parse(text)
        except ValueError as error:
            raise Failed(f"the {what} on line number {number} is no {form.serde.name}: {text!r} ({error})") from error


def _unescaped(text: str | None) -> str:
    r"""A separator as it is meant: `\t` is what people write for a tab in a shell."""
    return (text or "").replace("\\t", "\t").replace("\\n", "\n")
