"""A pipeline file: sources that run without an application, `headrace connect run pipeline.toml`.

name = "shop"                       # the positions in the log belong to this name
log = "kafka://127.0.0.1:9092"

[[source]]
type = "PostgresChanges"            # a class of headrace.connect, or module:Class
topic = "customers"                 # without one: the name of the source
partitions = 4
key = "LONG"                        # serdes of headrace.serde
dsn = "${SHOP_DATABASE}"            # all else goes to the class; ${NAME} is a variable of the environment
table = "customers"

[[source]]
type = "LogSource"                  # a mirror
log = "kafka://eu.example:9092"
topic = "orders"                    # the topic there
target_topic = "orders-of-europe"   # the topic here; without one: the name of the source
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from headrace import connect, serde
from headrace.errors import ConfigError
from headrace.model.sink import Sink
from headrace.serde.protocol import Serde
from headrace.topology.connectors import Source, SourceSpec

_SERDES = sorted(name for name in serde.__all__ if isinstance(getattr(serde, name), Serde))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The sources of a pipeline file."""

    name: str
    log: str | None
    sources: tuple[SourceSpec, ...]


def read_pipeline(path: Path | str) -> Pipeline:
    """Reads a pipeline file. An error names the file and the source."""
    with Path(path).open("rb") as file:
        try:
            return parse_pipeline(tomllib.load(file))
        except (tomllib.TOMLDecodeError, ConfigError) as error:
            raise ConfigError(f"{path}: {error}") from error


def parse_pipeline(found: Mapping[str, Any]) -> Pipeline:
    """Parses a pipeline.

    >>> source = {"type": "FileSource", "files": "/var/shop", "topic": "orders", "value": "STRING"}
    >>> parse_pipeline({"name": "shop", "source": [source]}).sources[0]
    SourceSpec(topic='orders', key=<serde JSON>, value=<serde STRING>, partitions=None, config={})
    """
    unknown = sorted(found.keys() - {"name", "log", "source"})
    if unknown:
        raise ConfigError(f"a pipeline has name, log and [[source]], not {', '.join(unknown)}")
    if not isinstance(found.get("name"), str) or not found.get("source"):
        raise ConfigError("a pipeline needs a name, and a [[source]]")
    specs = tuple(_parse_source(dict(source)) for source in found["source"])
    names = [spec.name for spec in specs]
    if len(names) != len(set(names)):
        raise ConfigError("two sources have the same name: give each a name of its own, name=")
    return Pipeline(found["name"], found.get("log"), specs)


def _parse_source(options: dict[str, Any]) -> SourceSpec:
    kind = options.pop("type", None)
    if not isinstance(kind, str):
        raise ConfigError("a [[source]] needs a type, such as FileSource")
    found = _find_class(kind)
    topic = options.pop("target_topic" if _takes_topic(found) else "topic", None)
    partitions, config = options.pop("partitions", None), options.pop("config", {})
    serdes = {part: _find_serde(options.pop(part)) for part in ("key", "value") if part in options}
    try:
        source = found(**{name: _replace_variables(value) for name, value in options.items()}, **serdes)
    except TypeError as error:
        raise ConfigError(f"[[source]] {kind}: {error}") from error
    return SourceSpec(
        source=source, topic=topic or source.name, key=source.key, value=source.value, partitions=partitions,
        config=config,
    )  # fmt: skip


def _takes_topic(kind: Any) -> bool:
    """True for a mirror: its topic is the one that it reads."""
    return is_dataclass(kind) and "topic" in {option.name for option in fields(kind)}


def _find_class(kind: str) -> Any:
    module, colon, name = kind.partition(":")
    try:
        found = getattr(import_module(module), name, None) if colon else getattr(connect, kind, None)
    except ImportError as error:
        raise ConfigError(f"the module of the source {kind!r} cannot be imported: {error}") from error
    if not _is_source(found):
        sources = [name for name in sorted(connect.__all__) if _is_source(getattr(connect, name))]
        raise ConfigError(
            f"there is no source {kind!r}: write module:Class, such as headrace.web:HttpSource, or one of "
            f"{', '.join(sources)}"
        )
    return found


def _is_source(found: Any) -> bool:
    return isinstance(found, type) and hasattr(found, "open") and found is not Source and not issubclass(found, Sink)


def _find_serde(name: str) -> Serde[Any]:
    if name not in _SERDES:
        raise ConfigError(f"there is no serde {name!r}: write one of {', '.join(_SERDES)}")
    return getattr(serde, name)


def _replace_variables(value: Any) -> Any:
    """Replaces ${NAME} by variables of the environment, also inside of lists and tables."""
    if isinstance(value, dict):
        return {name: _replace_variables(inside) for name, inside in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [*map(_replace_variables, cast("list[Any]", value))]

    def replace(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise ConfigError(f"the environment has no variable {found[1]}")
        return os.environ[found[1]]

    return re.sub(r"\$\{(\w+)\}", replace, value) if isinstance(value, str) else value
