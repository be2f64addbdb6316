"""Topics of a Kafka cluster: describes, creates, changes and deletes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from headrace.errors import ConfigError, LogBusyError, UnknownTopicError
from headrace.log.kafka.clients import (
    AdminConnection,
    ask,
    ask_all,
    begin_asking,
    code_of,
    kafka,
    kafka_admin,
    translate_errors,
)
from headrace.log.protocol import Topic
from headrace.log.topic_config import (
    DEFAULTS,
    WITHOUT_EFFECT,
    check_more_partitions,
    check_partition_count,
    check_topic_config,
    check_topic_name,
    topic_exists,
)
from headrace.log.validation import check_topic_ids, unknown_topic

_PAUSE = 0.005  # seconds: brokers learn what the controller has decided some milliseconds later
_PROPAGATION = 15.0  # seconds within which every broker learns of a new topic
_TOPIC = kafka_admin.ConfigResource.Type.TOPIC
_UNKNOWN = {kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, kafka.KafkaError.TOPIC_EXCEPTION}


class LazyConfig(Mapping[str, str]):
    """The settings of a topic. They are requested when they are first read."""

    def __init__(self, request: Callable[[], dict[str, str]]) -> None:
        self._request = request
        self._loaded: dict[str, str] | None = None

    def _load(self) -> dict[str, str]:
        if self._loaded is None:
            self._loaded = self._request()
        return self._loaded

    def __getitem__(self, name: str) -> str:
        return self._load()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def __repr__(self) -> str:
        return repr(self._load())


class Topics:
    """The topics of a cluster."""

    def __init__(self, admin: AdminConnection) -> None:
        self._admin, self._timeout = admin, admin.settings.timeout
        self._created: dict[str, float] = {}  # topics that this client has created, and when

    # ---------------------------------------------------------------------------------------------------- describe
    def names(self) -> list[str]:
        """Returns the names of all topics, except Kafka's own."""
        client = self._admin.client
        found = ask(self._admin, "listing the topics", lambda timeout: client.list_topics(timeout=timeout).topics)
        return sorted(name for name in found if not name.startswith("__"))

    def all(self) -> dict[str, Topic]:
        return {name: topic for name, topic in self.find(self.names()).items() if topic is not None}

    def get(self, *names: str) -> dict[str, Topic]:
        """Returns topics by name; raises if one does not exist. Waits for brokers that do not know a new topic yet."""
        return self._require(self.find(names))

    def find(self, names: Sequence[str]) -> dict[str, Topic | None]:
        """Returns topics by name; None for those that do not exist."""
        return self._begin_find(names)()

    def begin_get(self, names: Sequence[str]) -> Callable[[], dict[str, Topic]]:
        """Sends the request of `get`. The returned function waits for the answer."""
        answer = self._begin_find(names)
        return lambda: self._require(answer())

    def begin_check_ids(self, ids: Mapping[str, str]) -> Callable[[], dict[str, int]]:
        """Requests topics. The returned function waits, raises if an id differs, and returns the partition counts."""
        answer = self.begin_get(list(ids))
        return lambda: check_topic_ids(ids, answer().__getitem__)

    def _begin_find(self, names: Sequence[str]) -> Callable[[], dict[str, Topic | None]]:
        legal = sorted({name for name in names if name})
        if not legal:
            return lambda: dict.fromkeys(names)

        def describe(timeout: float) -> dict[str, Future[Any]]:
            return self._admin.client.describe_topics(kafka.TopicCollection(legal), request_timeout=timeout)

        answers = begin_asking(self._admin, f"describing {', '.join(legal)}", describe)

        def topics() -> dict[str, Topic | None]:
            return {**dict.fromkeys(names), **{name: self._topic(name, future) for name, future in answers().items()}}

        return topics

    def _topic(self, name: str, described: Future[Any]) -> Topic | None:
        with translate_errors(f"describing the topic {name!r}"):
            try:
                found = described.result()
            except kafka.KafkaException as error:
                if code_of(error) in _UNKNOWN:
                    return None
                raise
        return Topic(name, str(found.topic_id), len(found.partitions), LazyConfig(lambda: self._read_config(name)))

    def _require(self, found: Mapping[str, Topic | None]) -> dict[str, Topic]:
        topics, end = dict(found), time.monotonic() + _PROPAGATION
        while missing := sorted(name for name, topic in topics.items() if topic is None):
            names = self.names()  # maybe of another broker
            absent = [name for name in missing if name not in names and not self._is_new(name)]
            if absent or time.monotonic() > end:
                raise unknown_topic((absent or missing)[0], names)
            time.sleep(_PAUSE)
            topics |= self.find(missing)
        return {name: topic for name, topic in topics.items() if topic is not None}

    def _is_new(self, name: str) -> bool:
        """True for a topic that this client has just created: brokers that do not know it will."""
        return time.monotonic() < self._created.get(name, -_PROPAGATION) + _PROPAGATION

    def _read_config(self, name: str) -> dict[str, str]:
        entries = self._describe_config(name)
        return {setting: entries[setting].value or "" for setting in sorted(entries)}

    def _find_own_settings(self, name: str) -> set[str]:
        """Returns the settings that a topic does not take from its broker."""
        own = kafka_admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {setting for setting, entry in self._describe_config(name).items() if entry.source == own}

    def _describe_config(self, name: str) -> dict[str, Any]:
        doing, resource = f"reading the settings of the topic {name!r}", kafka_admin.ConfigResource(_TOPIC, name)
        client, end = self._admin.client, time.monotonic() + _PROPAGATION
        while True:
            answers = ask_all(
                self._admin, doing, lambda timeout: client.describe_configs([resource], request_timeout=timeout)
            )
            try:
                with translate_errors(doing):
                    return answers[resource].result()
            except UnknownTopicError:  # another broker has described the topic
                if time.monotonic() > end:
                    raise
                time.sleep(_PAUSE)

    def find_unwritable(self, names: Sequence[str]) -> list[str]:
        """Returns the topics for which an ACL for writing is missing."""
        answers = self._admin.client.describe_topics(
            kafka.TopicCollection(names), include_authorized_operations=True, request_timeout=self._timeout
        )
        write = kafka_admin.AclOperation.WRITE
        with translate_errors(f"describing {', '.join(names)}"):
            return [
                name for name, future in answers.items() if write not in (future.result().authorized_operations or ())
            ]

    # ------------------------------------------------------------------------------------------------------ change
    def create(
        self, name: str, partitions: int, config: Mapping[str, str | int], replication_factor: int | None = None
    ) -> Topic:
        """Creates a topic. Without a replication factor the setting `replication.factor` decides, or the broker."""
        check_topic_name(name)
        check_partition_count(partitions)
        replicas = self._admin.settings.replication_factor if replication_factor is None else replication_factor
        _check_replication_factor(replicas)
        existing = self.find([name])[name]
        if existing is not None:
            raise topic_exists(name, existing.partitions)
        new = kafka_admin.NewTopic(name, partitions, replicas, config=_check_config(config))
        with _explain_config(config), translate_errors(f"creating the topic {name!r}"):
            self._admin.client.create_topics([new], request_timeout=self._timeout)[name].result()
        self._created[name] = time.monotonic()
        return self._wait_for(name, lambda topic: topic.partitions == partitions)

    def delete(self, name: str) -> None:
        before = self.get(name)[name]
        self._created.pop(name, None)
        with translate_errors(f"deleting the topic {name!r}"):
            self._admin.client.delete_topics([name], request_timeout=self._timeout)[name].result()
        self._wait_until(lambda: (found := self.find([name])[name]) is None or found.id != before.id)

    def add_partitions(self, name: str, partitions: int) -> Topic:
        check_more_partitions(name, self.get(name)[name].partitions, partitions)
        new = kafka_admin.NewPartitions(name, partitions)
        with translate_errors(f"adding partitions to the topic {name!r}"):
            self._admin.client.create_partitions([new], request_timeout=self._timeout)[name].result()
        return self._wait_for(name, lambda topic: topic.partitions == partitions)

    def alter_config(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        self.get(name)
        texts = _check_config({setting: value for setting, value in config.items() if value is not None})
        operations = kafka_admin.AlterConfigOpType
        entries = [
            kafka_admin.ConfigEntry(setting, texts.get(setting), incremental_operation=operation)
            for setting in config
            for operation in [operations.SET if setting in texts else operations.DELETE]
        ]
        resource = kafka_admin.ConfigResource(_TOPIC, name, incremental_configs=entries)
        with _explain_config(config), translate_errors(f"changing the topic {name!r}"):
            changed = self._admin.client.incremental_alter_configs([resource], request_timeout=self._timeout)
            for future in changed.values():
                future.result()
        resets = config.keys() - texts.keys()

        def is_changed(topic: Topic) -> bool:
            is_set = all(topic.config[setting] == text for setting, text in texts.items())
            return is_set and not (resets and resets & self._find_own_settings(name))

        return self._wait_for(name, is_changed)

    def _wait_for(self, name: str, is_changed: Callable[[Topic], bool]) -> Topic:
        """Waits until a broker knows a change, and returns the topic. Other brokers may learn of it a little later."""
        changed: list[Topic] = []

        def look() -> bool:
            found = self.find([name])[name]
            changed.extend([found] if found is not None and is_changed(found) else [])
            return bool(changed)

        self._wait_until(look)
        return changed[0]

    def _wait_until(self, is_changed: Callable[[], bool]) -> None:
        end = time.monotonic() + self._timeout
        while not is_changed():
            if time.monotonic() > end:
                raise LogBusyError(f"a change was not seen within {self._timeout:g} seconds: look again later")
            time.sleep(_PAUSE)


def _check_config(config: Mapping[str, str | int]) -> dict[str, str]:
    """Returns settings as text. Known settings are checked here, the others by the cluster."""
    known = {name: value for name, value in config.items() if name in DEFAULTS or name in WITHOUT_EFFECT}
    others = {name: str(value) for name, value in config.items() if name not in known}
    return {**check_topic_config(known), **others}


@contextmanager
def _explain_config(config: Mapping[str, str | int | None]) -> Generator[None]:
    """If the cluster rejects the settings, raises our own error for a setting that we do not know either."""
    try:
        yield
    except ConfigError:
        check_topic_config({name: value for name, value in config.items() if value is not None})
        raise


def _check_replication_factor(replicas: int) -> None:
    if type(replicas) is not int or not (replicas == -1 or 1 <= replicas <= 32_767):
        raise ValueError(
            f"a topic has a replication factor of at least 1, or of -1 for the broker's default, not {replicas!r}"
        )
