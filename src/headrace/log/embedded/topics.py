"""What a topic can be told, in Kafka's words.

Which topics there are: one row, so that none can vanish unnoticed.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from uuid import uuid4

import msgspec

from headrace.errors import ConfigError, TopicExistsError, UnknownTopicError
from headrace.log.embedded import database
from headrace.log.protocol import Topic
from headrace.model.ids import TopicPartition

# As in Kafka, except that records are kept for ever: their times are often those of a recording, and a log on one's own
# disk that loses a week-old recording by itself is a surprise.
DEFAULTS = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
# Kafka has these too. They are kept and shown, and change nothing here.
WITHOUT_EFFECT = frozenset((
    "compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level",
    "file.delete.delay.ms", "flush.messages", "flush.ms", "follower.replication.throttled.replicas",
    "index.interval.bytes", "leader.replication.throttled.replicas", "local.retention.bytes", "local.retention.ms",
    "max.compaction.lag.ms", "message.timestamp.after.max.ms", "message.timestamp.before.max.ms",
    "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas", "preallocate", "remote.storage.enable",
    "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms", "unclean.leader.election.enable",
))  # fmt: skip
_POLICIES = {"delete", "compact"}
_TIMES = {"CreateTime", "LogAppendTime"}
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class TopicRules:
    """A topic's configuration, understood."""

    deletes: bool
    compacts: bool
    tombstones_ms: int
    longest_record: int
    append_time: bool
    retention_bytes: int  # -1: endless, as below
    retention_ms: int


def checked_name(name: str) -> str:
    """A name that Kafka would accept, too."""
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        raise ValueError(
            f"{name!r} cannot be the name of a topic: 1 to 249 letters, digits, dots, underscores and hyphens can"
        )
    return name


def checked_config(config: Mapping[str, str | int]) -> dict[str, str]:
    """Settings as text, if all of them are known and can be understood.

    >>> checked_config({"retention.ms": -1})
    {'retention.ms': '-1'}
    """
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in config.items()}
    for name in texts:
        if name not in DEFAULTS and name not in WITHOUT_EFFECT:
            near = get_close_matches(name, [*DEFAULTS, *WITHOUT_EFFECT], 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(DEFAULTS)}"
            raise ConfigError(f"topics have no setting {name!r}: {hint}")
    rules_of(texts)
    return texts


def rules_of(config: Mapping[str, str]) -> TopicRules:
    """
    >>> rules_of({"cleanup.policy": "compact"}).compacts
    True
    """
    config = {**DEFAULTS, **config}
    policies = {policy.strip() for policy in config["cleanup.policy"].split(",")}
    if not policies <= _POLICIES:
        raise _refusal(config, "cleanup.policy", "'delete', 'compact' or 'compact,delete'")
    if config["message.timestamp.type"] not in _TIMES:
        raise _refusal(config, "message.timestamp.type", "'CreateTime' or 'LogAppendTime'")
    return TopicRules(
        deletes="delete" in policies,
        compacts="compact" in policies,
        tombstones_ms=_number(config, "delete.retention.ms", 0),
        longest_record=_number(config, "max.message.bytes", 0),
        append_time=config["message.timestamp.type"] == "LogAppendTime",
        retention_bytes=_number(config, "retention.bytes", -1),
        retention_ms=_number(config, "retention.ms", -1),
    )


def _number(config: Mapping[str, str], name: str, least: int) -> int:
    try:
        number = int(config[name])
    except ValueError:
        number = least - 1
    if not least <= number < 2**63:
        raise _refusal(config, name, "a whole number" if least == 0 else "a whole number, or -1 for no limit")
    return number


def _refusal(config: Mapping[str, str], name: str, wanted: str) -> ConfigError:
    return ConfigError(f"the topic setting {name} is {wanted}, not {config[name]!r}")


_ROW = "catalog"


@lru_cache(256)
def _rules(config: tuple[tuple[str, str], ...]) -> TopicRules:
    return rules_of(dict(config))


class Entry(msgspec.Struct, frozen=True):
    """A topic; the number stands for it in all other tables and is never used again."""

    number: int
    id: str
    partitions: int
    config: dict[str, str]

    @property
    def rules(self) -> TopicRules:
        return _rules(tuple(self.config.items()))

    def named(self, name: str) -> Topic:
        return Topic(name, self.id, self.partitions, dict(sorted({**DEFAULTS, **self.config}.items())))


class Catalog(msgspec.Struct, frozen=True):
    """All topics, as they are from one version of the row on."""

    version: int
    next_number: int
    topics: dict[str, Entry]

    def topic(self, name: str) -> Entry:
        entry = self.topics.get(name)
        if entry is None:
            have = ", ".join(sorted(self.topics)[:10]) or "none"
            raise UnknownTopicError(
                f"there is no topic {name!r} (there are: {have}): create it, create_topic({name!r})"
            )
        return entry

    def place(self, at: TopicPartition) -> Entry:
        """The topic of a partition that exists."""
        entry = self.topic(at.topic)
        if not 0 <= at.partition < entry.partitions:
            raise UnknownTopicError(
                f"the topic {at.topic!r} has no partition {at.partition}: it has {entry.partitions}, counted from 0"
            )
        return entry

    def by_number(self) -> dict[int, tuple[str, Entry]]:
        return {entry.number: (name, entry) for name, entry in self.topics.items()}


EMPTY = Catalog(0, 1, {})
_decode = msgspec.json.Decoder(Catalog).decode


class Topics:
    """The catalog as a transaction sees it; read from the database only when it has changed."""

    def __init__(self) -> None:
        self._known = EMPTY

    def seen_by(self, connection: sqlite3.Connection) -> Catalog:
        known = self._known
        if database.meta_version(connection, _ROW) != known.version:
            version, raw = database.meta(connection, _ROW)
            known = _decode(raw)
            if known.version != version:
                raise database.broken("the row 'catalog' of the table meta")
            self._known = known
        return known


def write(connection: sqlite3.Connection, catalog: Catalog) -> None:
    database.put_meta(connection, _ROW, catalog.version, msgspec.json.encode(catalog))


def create(
    catalog: Catalog, name: str, partitions: int, config: Mapping[str, str | int], topic_id: str | None = None
) -> Catalog:
    if name in catalog.topics:
        raise TopicExistsError(f"there is a topic {name!r} already, with {catalog.topics[name].partitions} partitions")
    _check_count(partitions)
    entry = Entry(catalog.next_number, topic_id or uuid4().hex, partitions, checked_config(config))
    topics = {**catalog.topics, checked_name(name): entry}
    return Catalog(_new_version(), catalog.next_number + 1, topics)


def delete(catalog: Catalog, name: str) -> Catalog:
    catalog.topic(name)
    topics = {other: entry for other, entry in catalog.topics.items() if other != name}
    return Catalog(_new_version(), catalog.next_number, topics)


def grow(catalog: Catalog, name: str, partitions: int) -> Catalog:
    entry = catalog.topic(name)
    _check_count(partitions)
    if partitions <= entry.partitions:
        raise ValueError(f"the topic {name!r} has {entry.partitions} partitions: it can get more, but not {partitions}")
    return _with(catalog, name, Entry(entry.number, entry.id, partitions, entry.config))


def alter(catalog: Catalog, name: str, config: Mapping[str, str | int | None]) -> Catalog:
    entry = catalog.topic(name)
    given: dict[str, str | int] = {**entry.config}
    for setting, value in config.items():
        if value is None:
            given.pop(setting, None)
        else:
            given[setting] = value
    return _with(catalog, name, Entry(entry.number, entry.id, entry.partitions, checked_config(given)))


def _new_version() -> int:
    """Never used before: a version that was counted up and rolled back would come again with other topics."""
    return uuid4().int >> 66


def _with(catalog: Catalog, name: str, entry: Entry) -> Catalog:
    return Catalog(_new_version(), catalog.next_number, {**catalog.topics, name: entry})


def _check_count(partitions: int) -> None:
    if type(partitions) is not int or not 1 <= partitions <= 10_000:
        raise ValueError(f"a topic has 1 to 10000 partitions, not {partitions!r}")
