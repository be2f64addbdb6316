"""What a topic can be told, in Kafka's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from headrace.errors import ConfigError

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
