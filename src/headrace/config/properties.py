"""Java's `.properties` files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import ConfigError

_SEPARATOR = re.compile(r"(?:\\.|[^\\=:\s])*")  # a key ends at the first =, : or space that no backslash protects
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: str | Path) -> dict[str, str]:
    """The settings in a `.properties` file."""
    try:
        text = Path(path).read_bytes()
    except OSError as problem:
        raise ConfigError(f"the configuration file {str(path)!r} cannot be read: {problem.strerror}") from problem
    try:
        return parse_properties(text.decode())
    except UnicodeDecodeError:
        return parse_properties(text.decode("latin-1"))  # what Java wrote before UTF-8


def parse_properties(text: str) -> dict[str, str]:
    r"""The settings in the text of a `.properties` file; the last one of a name counts.

    >>> parse_properties("application.id = shop\n# a comment\nstate.dir: /var/lib/shop")
    {'application.id': 'shop', 'state.dir': '/var/lib/shop'}
    """
    settings: dict[str, str] = {}
    for line in _logical_lines(text):
        end = _SEPARATOR.match(line).end()  # pyright: ignore[reportOptionalMemberAccess] - it matches empty text, too
        rest = line[end:].lstrip()
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip()
        settings[_unescaped(line[:end])] = _unescaped(rest)
    return settings


def _logical_lines(text: str) -> Iterator[str]:
    """Yields lines that are neither empty nor comments. A line that ends with a backslash is joined with the next."""
    begun = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        line = begun + natural.lstrip(" \t\f")
        if not begun and line[:1] in ("", "#", "!"):
            continue
        begun = ""
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun = line[:-1]
        else:
            yield line
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _character(found[1]), text)


def _character(code: str) -> str:
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)
