"""Topic names and topic settings, in Kafka's words: which there are, their defaults, and how they are parsed.

Both logs check names and settings here before they create or change a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from headrace.config.parsing import is_legal_name
from headrace.errors import ConfigError, TopicExistsError

# Kafka's defaults, except that records are kept for ever: their timestamps are often those of a recording, and a local
# log that deletes a week-old recording by itself would surprise its user.
DEFAULTS = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
# Settings of Kafka that the embedded log stores and shows, but that change nothing in it.
WITHOUT_EFFECT = frozenset((
    "compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level",
    "file.delete.delay.ms", "flush.messages", "flush.ms", "follower.replication.throttled.replicas",
    "index.interval.bytes", "leader.replication.throttled.replicas", "local.retention.bytes", "local.retention.ms",
    "max.compaction.lag.ms", "message.timestamp.after.max.ms", "message.timestamp.before.max.ms",
    "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas", "preallocate", "remote.storage.enable",
    "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms", "unclean.leader.election.enable",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The parsed settings of a topic that have an effect in the embedded log. -1 means no limit."""

    deletes: bool
    compacts: bool
    delete_retention_ms: int
    max_message_bytes: int
    uses_append_time: bool
    retention_bytes: int
    retention_ms: int


def check_topic_name(name: str) -> str:
    """Returns the name if Kafka accepts it; raises otherwise."""
    if not is_legal_name(name):
        raise ValueError(
            f"{name!r} cannot be the name of a topic: 1 to 249 letters, digits, dots, underscores and hyphens can"
        )
    return name


def check_partition_count(partitions: int) -> None:
    if type(partitions) is not int or not 1 <= partitions <= 10_000:
        raise ValueError(f"a topic has 1 to 10000 partitions, not {partitions!r}")


def check_more_partitions(name: str, present: int, wanted: int) -> None:
    """Raises unless a topic of `present` partitions can get `wanted` of them."""
    check_partition_count(wanted)
    if wanted <= present:
        raise ValueError(f"the topic {name!r} has {present} partitions: it can get more, but not {wanted}")


def topic_exists(name: str, partitions: int) -> TopicExistsError:
    return TopicExistsError(f"there is a topic {name!r} already, with {partitions} partitions")


def check_topic_config(config: Mapping[str, str | int]) -> dict[str, str]:
    """Returns the settings as text; raises if one is unknown or has an invalid value.

    >>> check_topic_config({"retention.ms": -1})
    {'retention.ms': '-1'}
    """
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in config.items()}
    for name in texts:
        if name not in DEFAULTS and name not in WITHOUT_EFFECT:
            near = get_close_matches(name, [*DEFAULTS, *WITHOUT_EFFECT], 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(DEFAULTS)}"
            raise ConfigError(f"topics have no setting {name!r}: {hint}")
    parse_topic_config(texts)
    return texts


def parse_topic_config(config: Mapping[str, str]) -> TopicConfig:
    """
    >>> parse_topic_config({"cleanup.policy": "compact"}).compacts
    True
    """
    config = {**DEFAULTS, **config}
    policies = {policy.strip() for policy in config["cleanup.policy"].split(",")}
    if not policies <= {"delete", "compact"}:
        raise _invalid(config, "cleanup.policy", "'delete', 'compact' or 'compact,delete'")
    if config["message.timestamp.type"] not in {"CreateTime", "LogAppendTime"}:
        raise _invalid(config, "message.timestamp.type", "'CreateTime' or 'LogAppendTime'")
    return TopicConfig(
        deletes="delete" in policies,
        compacts="compact" in policies,
        delete_retention_ms=_number(config, "delete.retention.ms", 0),
        max_message_bytes=_number(config, "max.message.bytes", 0),
        uses_append_time=config["message.timestamp.type"] == "LogAppendTime",
        retention_bytes=_number(config, "retention.bytes", -1),
        retention_ms=_number(config, "retention.ms", -1),
    )


def _number(config: Mapping[str, str], name: str, least: int) -> int:
    try:
        number = int(config[name])
    except ValueError:
        number = least - 1
    if not least <= number < 2**63:
        raise _invalid(config, name, "a whole number" if least == 0 else "a whole number, or -1 for no limit")
    return number


def _invalid(config: Mapping[str, str], name: str, wanted: str) -> ConfigError:
    return ConfigError(f"the topic setting {name} is {wanted}, not {config[name]!r}")
