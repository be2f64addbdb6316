"""The catalog of topics. All topics are in one row of the table `meta`, so that no topic can get lost unnoticed.

A catalog is immutable: the functions here return a changed one, which `save_catalog` writes. Topic settings are parsed
in log/topic_config.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import lru_cache
from uuid import uuid4

import msgspec

from headrace.log.embedded.schema import damaged_row, put_meta, read_meta
from headrace.log.protocol import Topic
from headrace.log.topic_config import (
    DEFAULTS,
    TopicConfig,
    check_more_partitions,
    check_partition_count,
    check_topic_config,
    check_topic_name,
    parse_topic_config,
    topic_exists,
)
from headrace.log.validation import check_partition, unknown_topic
from headrace.model.ids import TopicPartition


@lru_cache(256)
def _parse(config: tuple[tuple[str, str], ...]) -> TopicConfig:
    return parse_topic_config(dict(config))


class TopicEntry(msgspec.Struct, frozen=True):
    """A topic in the catalog. Other tables refer to it by its number, which is never used again."""

    number: int
    id: str
    partitions: int
    config: dict[str, str]  # without defaults

    @property
    def parsed_config(self) -> TopicConfig:
        return _parse(tuple(self.config.items()))

    def describe(self, name: str) -> Topic:
        return Topic(name, self.id, self.partitions, dict(sorted({**DEFAULTS, **self.config}.items())))


class Catalog(msgspec.Struct, frozen=True):
    """All topics. Every change gives the catalog a new version."""

    version: int
    next_number: int
    topics: dict[str, TopicEntry]

    def topic(self, name: str) -> TopicEntry:
        entry = self.topics.get(name)
        if entry is None:
            raise unknown_topic(name, self.topics)
        return entry

    def topic_of(self, at: TopicPartition) -> TopicEntry:
        """Returns the topic of a partition; raises if the partition does not exist."""
        entry = self.topic(at.topic)
        check_partition(at, entry.partitions)
        return entry

    def replace(self, topics: dict[str, TopicEntry], next_number: int | None = None) -> Catalog:
        # The version is random: one that was counted up and rolled back would be used again for other topics.
        return Catalog(uuid4().int >> 66, next_number or self.next_number, topics)


EMPTY = Catalog(0, 1, {})
_decode = msgspec.json.Decoder(Catalog).decode


def load_catalog(connection: sqlite3.Connection) -> Catalog:
    version, raw = read_meta(connection, "catalog")
    if version == EMPTY.version:
        return EMPTY
    catalog = _decode(raw)
    if catalog.version != version:
        raise damaged_row("the row 'catalog' of the table meta")
    return catalog


def save_catalog(connection: sqlite3.Connection, catalog: Catalog) -> None:
    put_meta(connection, "catalog", catalog.version, msgspec.json.encode(catalog))


def create_topic(catalog: Catalog, name: str, partitions: int, config: Mapping[str, str | int]) -> Catalog:
    if name in catalog.topics:
        raise topic_exists(name, catalog.topics[name].partitions)
    check_partition_count(partitions)
    entry = TopicEntry(catalog.next_number, uuid4().hex, partitions, check_topic_config(config))
    return catalog.replace({**catalog.topics, check_topic_name(name): entry}, catalog.next_number + 1)


def delete_topic(catalog: Catalog, name: str) -> Catalog:
    catalog.topic(name)
    return catalog.replace({other: entry for other, entry in catalog.topics.items() if other != name})


def add_partitions(catalog: Catalog, name: str, partitions: int) -> Catalog:
    entry = catalog.topic(name)
    check_more_partitions(name, entry.partitions, partitions)
    return catalog.replace({**catalog.topics, name: msgspec.structs.replace(entry, partitions=partitions)})


def alter_config(catalog: Catalog, name: str, config: Mapping[str, str | int | None]) -> Catalog:
    entry = catalog.topic(name)
    changed = {setting: value for setting, value in {**entry.config, **config}.items() if value is not None}
    return catalog.replace({**catalog.topics, name: msgspec.structs.replace(entry, config=check_topic_config(changed))})
