"""Topics of a Kafka cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from typing import Any

from headrace.errors import ConfigError, LogBusyError, TopicExistsError, UnknownTopicError
from headrace.log.kafka.clients import Clients, administration, kafka
from headrace.log.kafka.requests import MARGIN, answers, ask, code_of, explained
from headrace.log.protocol import Topic
from headrace.log.topic_config import DEFAULTS, WITHOUT_EFFECT, check_topic_config, check_topic_name
from headrace.log.validation import check_topic_ids
from headrace.model.ids import TopicPartition

_SOON = 1.0  # seconds until one asks again, with patience
_LOOK_AGAIN = 0.005  # seconds: what the controller has decided, brokers know some milliseconds later
_RESOURCE = administration.ConfigResource.Type.TOPIC
_code = kafka.KafkaError


class TopicSettings(Mapping[str, str]):
    """The configuration of a topic; asked for when somebody looks at it."""

    def __init__(self, ask: Callable[[], dict[str, str]]) -> None:
        self._ask = ask
        self._found: dict[str, str] | None = None

    def _all(self) -> dict[str, str]:
        if self._found is None:
            self._found = self._ask()
        return self._found

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


class Topics:
    """What `Log` says of topics."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self._patience = clients, clients.settings.patience

    # ----------------------------------------------------------------------------------------------------- looking
    def names(self) -> list[str]:
        """All but those of Kafka itself."""
        found = ask(
            self._clients, "listing the topics", lambda length: self._clients.admin.list_topics(timeout=length).topics
        )
        return sorted(name for name in found if not name.startswith("__"))

    def all(self) -> dict[str, Topic]:
        found = self.described(self.names())
        return {name: topic for name, topic in found.items() if topic is not None}

    def one(self, name: str) -> Topic:
        found = self.described([name])[name]
        if found is None:
            have = ", ".join(self.names()) or "none"
            raise UnknownTopicError(
                f"there is no topic {name!r} (there are: {have}): create it, create_topic({name!r})"
            )
        return found

    def known(self, names: Sequence[str]) -> dict[str, Topic]:
        """Topics that have to be there."""
        found = self.described(names)
        return {name: topic if topic is not None else self.one(name) for name, topic in found.items()}

    def place(self, at: TopicPartition, topic: Topic) -> None:
        if not 0 <= at.partition < topic.partitions:
            raise UnknownTopicError(
                f"the topic {at.topic!r} has no partition {at.partition}: it has {topic.partitions}, counted from 0"
            )

    def confirm(self, ids: Mapping[str, str]) -> Callable[[], None]:
        """Asks whether topics have these ids; what is given waits for the answer, and raises if one has another."""
        answer = self.asking(list(ids))

        def confirmed() -> None:
            found = answer()
            check_topic_ids(ids, lambda name: found[name] or self.one(name))

        return confirmed

    def asking(self, names: Sequence[str]) -> Callable[[], dict[str, Topic | None]]:
        """The same as `described`, but the question is on its way while something else is done."""
        legal = sorted({name for name in names if name})
        asked = self._describe(legal, self._patience + MARGIN) if legal else {}

        def answer() -> dict[str, Topic | None]:
            if wait(asked.values(), _SOON).not_done or any(future.exception() is not None for future in asked.values()):
                return self.described(names)
            return {name: self._topic(name, asked[name].result()) if name else None for name in names}

        return answer

    def described(self, names: Sequence[str]) -> dict[str, Topic | None]:
        """Topics by name; None where there is none."""
        legal = sorted({name for name in names if name})
        found: dict[str, Topic | None] = dict.fromkeys(names)
        if not legal:
            return found
        for name, future in answers(
            self._clients, f"describing {', '.join(legal)}", partial(self._describe, legal)
        ).items():
            with explained(f"describing the topic {name!r}"):
                try:
                    found[name] = self._topic(name, future.result())
                except kafka.KafkaException as error:
                    if code_of(error) not in {_code.UNKNOWN_TOPIC_OR_PART, _code.TOPIC_EXCEPTION}:
                        raise
        return found

    def _describe(self, names: Sequence[str], length: float) -> dict[str, Any]:
        return self._clients.admin.describe_topics(kafka.TopicCollection(names), request_timeout=length)

    def _topic(self, name: str, description: Any) -> Topic:
        return Topic(
            name, str(description.topic_id), len(description.partitions), TopicSettings(lambda: self._settings(name))
        )

    def _settings(self, name: str) -> dict[str, str]:
        doing, resource = f"reading the settings of the topic {name!r}", administration.ConfigResource(_RESOURCE, name)
        asked = answers(
            self._clients,
            doing,
            lambda length: self._clients.admin.describe_configs([resource], request_timeout=length),
        )
        with explained(doing):
            found = asked[resource].result()
        return {entry.name: entry.value or "" for entry in sorted(found.values(), key=_name)}

    def not_writable(self, names: Sequence[str]) -> list[str]:
        """Topics for which an ACL for writing is missing."""
        asked = self._clients.admin.describe_topics(
            kafka.TopicCollection(names), include_authorized_operations=True, request_timeout=self._patience
        )
        write = administration.AclOperation.WRITE
        with explained(f"describing {', '.join(names)}"):
            return [
                name for name, future in asked.items() if write not in (future.result().authorized_operations or ())
            ]

    # ---------------------------------------------------------------------------------------------------- changing
    def create(
        self, name: str, partitions: int, config: Mapping[str, str | int], replication_factor: int | None = None
    ) -> Topic:
        """Creates a topic; without a replication factor the setting `replication.factor` decides, else the broker."""
        check_topic_name(name)
        _check_count(partitions)
        copies = self._clients.settings.replication_factor if replication_factor is None else replication_factor
        _check_copies(copies)
        there = self.described([name])[name]
        if there is not None:
            raise TopicExistsError(f"there is a topic {name!r} already, with {there.partitions} partitions")
        texts = _checked(config)
        wanted = administration.NewTopic(name, partitions, copies, config=texts)
        with _settings_explained(config), explained(f"creating the topic {name!r}"):
            self._clients.admin.create_topics([wanted], request_timeout=self._patience)[name].result()
        return self._until(name, lambda topic: topic.partitions == partitions)

    def delete(self, name: str) -> None:
        before = self.one(name)
        with explained(f"deleting the topic {name!r}"):
            self._clients.admin.delete_topics([name], request_timeout=self._patience)[name].result()
        self._look(lambda: (found := self.described([name])[name]) is None or found.id != before.id)

    def grow(self, name: str, partitions: int) -> Topic:
        topic = self.one(name)
        _check_count(partitions)
        if partitions <= topic.partitions:
            raise ValueError(
                f"the topic {name!r} has {topic.partitions} partitions: it can get more, but not {partitions}"
            )
        wanted = administration.NewPartitions(name, partitions)
        with explained(f"adding partitions to the topic {name!r}"):
            self._clients.admin.create_partitions([wanted], request_timeout=self._patience)[name].result()
        return self._until(name, lambda found: found.partitions == partitions)

    def alter(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        self.one(name)
        texts = _checked({setting: value for setting, value in config.items() if value is not None})
        operations = administration.AlterConfigOpType
        entries = [
            administration.ConfigEntry(setting, texts.get(setting), incremental_operation=operation)
            for setting in config
            for operation in [operations.SET if setting in texts else operations.DELETE]
        ]
        resource = administration.ConfigResource(_RESOURCE, name, incremental_configs=entries)
        with _settings_explained(config), explained(f"changing the topic {name!r}"):
            changed = self._clients.admin.incremental_alter_configs([resource], request_timeout=self._patience)
            for future in changed.values():
                future.result()
        return self._until(name, lambda found: all(found.config[setting] == text for setting, text in texts.items()))

    def _until(self, name: str, is_so: Callable[[Topic], bool]) -> Topic:
        """The topic, once brokers know what was changed."""
        self._look(lambda: (found := self.described([name])[name]) is not None and is_so(found))
        return self.one(name)

    def _look(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + self._patience
        while not is_so():
            if time.monotonic() > end:
                raise LogBusyError(f"a change was not seen within {self._patience:g} seconds: look again later")
            time.sleep(_LOOK_AGAIN)


def _checked(config: Mapping[str, str | int]) -> dict[str, str]:
    """Settings as text; the values of those that we know are checked here, the rest is for the cluster to judge."""
    ours = {name: value for name, value in config.items() if name in DEFAULTS or name in WITHOUT_EFFECT}
    rest = {name: str(value) for name, value in config.items() if name not in ours}
    return {**check_topic_config(ours), **rest}


@contextmanager
def _settings_explained(config: Mapping[str, str | int | None]) -> Generator[None]:
    """A setting that the cluster refuses is named as we would, if we do not know it either."""
    try:
        yield
    except ConfigError:
        check_topic_config({name: value for name, value in config.items() if value is not None})
        raise


def _name(entry: Any) -> str:
    return entry.name


def _check_count(partitions: int) -> None:
    if type(partitions) is not int or not 1 <= partitions <= 10_000:
        raise ValueError(f"a topic has 1 to 10000 partitions, not {partitions!r}")


def _check_copies(replication_factor: int) -> None:
    if type(replication_factor) is not int or not (replication_factor == -1 or 1 <= replication_factor <= 32_767):
        raise ValueError(
            f"a topic has a replication factor of at least 1, or of -1 for the broker's default, not "
            f"{replication_factor!r}"
        )
