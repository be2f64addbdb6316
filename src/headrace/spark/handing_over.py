"""Opens what an application is made of, without running it, so that its state can be handed over."""

from __future__ import annotations

from contextlib import closing

from headrace.commit.exporting import Export, Exporter, Told, exported
from headrace.commit.storage import open_storage
from headrace.errors import ConfigError
from headrace.log.open import open_log
from headrace.spark.setup import Setup


def write_changelogs(setup: Setup, *, dry_run: bool, told: Told) -> list[Export]:
    """Writes the state of an application to the changelogs of Kafka Streams, on its log."""
    if not setup.log.startswith("kafka:"):
        raise ConfigError(f"{setup.log} is no Kafka log: no Java application could read changelogs there")
    with closing(open_log(setup.log, setup.config.extra)) as log:
        storage = open_storage(setup.checkpoint)
        exporter = Exporter(storage, log, setup.application_id, setup.graph, setup.config)
        return exported(exporter, dry_run=dry_run, told=told)
