"""Which topics there are: one row, so that none can vanish unnoticed."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import lru_cache
from uuid import uuid4

import msgspec

from headrace.log import schema
from headrace.log.configs import DEFAULTS, TopicRules, checked_config, checked_name, rules_of
from headrace.log.errors import TopicExistsError, UnknownTopicError
from headrace.log.protocol import Topic
from headrace.model.ids import TopicPartition

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
        if schema.meta_version(connection, _ROW) != known.version:
            version, raw = schema.meta(connection, _ROW)
            known = _decode(raw)
            if known.version != version:
                raise schema.broken("the row 'catalog' of the table meta")
            self._known = known
        return known


def write(connection: sqlite3.Connection, catalog: Catalog) -> None:
    schema.put_meta(connection, _ROW, catalog.version, msgspec.json.encode(catalog))


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
