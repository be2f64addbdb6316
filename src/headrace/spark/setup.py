"""What an application is made of."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.commit.steps import AtStep, unobserved
from headrace.config import Config
from headrace.errors import ConfigError
from headrace.topology.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A topology with its settings, and where its log, its checkpoint and its local state are."""

    application_id: str
    graph: Graph
    config: Config
    log: str
    checkpoint: str
    state_dir: str
    at_step: AtStep = unobserved
    spark: Any = None  # a SparkSession; without one Headrace makes its own
    master: str | None = None


def configuration(
    application_id: str,
    config: Mapping[str, Any] | str | Path | None,
    options: Mapping[str, Any],
    *,
    guarantee: str | None,
    commit_interval: int | timedelta | None,
) -> Config:
    """All settings in one; those that are given by name win."""
    unknown = sorted(options.keys() - Config.names())
    if unknown:
        raise TypeError(f"Application() has no option {', '.join(unknown)}")
    given = {"processing_guarantee": guarantee, "commit_interval_ms": commit_interval}
    named = {name: value for name, value in given.items() if value is not None}
    return Config.of(config, **{**options, **named, "application_id": application_id})


def log_address(log: str | None, config: Config) -> str:
    if log is not None and log.startswith("file:") and not log.startswith("file://"):
        return f"file:{absolute(log)}"
    if log is not None:
        return log
    if config.bootstrap_servers is None:
        raise ConfigError("an application needs a log: log='file:DIRECTORY', or log='kafka://HOST:PORT'")
    return f"kafka://{config.bootstrap_servers}"


def absolute(place: str) -> str:
    """A directory for processes that may stand elsewhere; URLs stay as they are.

    >>> absolute("s3://bucket/checkpoint")
    's3://bucket/checkpoint'
    """
    if "://" in place:
        return place
    return str(Path(place.removeprefix("file:")).expanduser().absolute())


def state_directory(config: Config) -> str:
    return absolute(config.state_dir or str(Path(tempfile.gettempdir()) / "headrace"))
