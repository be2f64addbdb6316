"""`headrace topics`: list, create, describe, alter and delete topics, as `kafka-topics` does."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from headrace.cli.options import AsJson, parse_pairs, takes_log
from headrace.cli.output import UsageError, print_json, print_names, print_note, print_rows
from headrace.clients import Admin
from headrace.clients.admin import TopicDescription
from headrace.errors import UnknownTopicError
from headrace.log import Log
from headrace.log.topic_config import DEFAULTS

app = typer.Typer(help="List, create, describe, alter and delete topics.", no_args_is_help=True)

Name = Annotated[str, typer.Option("--topic", help="The topic's name.")]
Pattern = Annotated[str | None, typer.Option("--topic", help="A name, or a regular expression that names match.")]
Settings = Annotated[list[str] | None, typer.Option("--config", help="key=value; may be given several times.")]
IfExists = Annotated[bool, typer.Option("--if-exists", help="Do nothing if the topic does not exist.")]


@app.command("list")
@takes_log()
def list_topics(log: Log, topic: Pattern = None, as_json: AsJson = False) -> None:
    """List the names of the topics."""
    print_names(_matching(log, topic), as_json=as_json)


@app.command()
@takes_log(creates=True)
def create(
    log: Log,
    topic: Name,
    partitions: Annotated[int, typer.Option(help="The number of partitions.")] = 1,
    replication_factor: Annotated[
        int | None, typer.Option(help="How many brokers keep a copy; without it, the broker's default.")
    ] = None,
    config: Settings = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing if the topic exists.")] = False,
) -> None:
    """Create a topic."""
    settings = parse_pairs(config or [], "--config")
    if if_not_exists and topic in log.topics():
        return
    log.create_topic(topic, partitions, settings, replication_factor=replication_factor)
    print_note(f"Created topic {topic}.")


@app.command()
@takes_log()
def delete(log: Log, topic: Name, if_exists: IfExists = False) -> None:
    """Delete topics and their records."""
    names = _matching(log, topic)
    if not names and not if_exists:
        log.topic(topic)
    for name in names:
        log.delete_topic(name)
        print_note(f"Deleted topic {name}.")


@app.command()
@takes_log()
def describe(log: Log, topic: Pattern = None, as_json: AsJson = False) -> None:
    """Show the partitions, offsets and settings of topics."""
    names = _matching(log, topic)
    if topic is not None and not names:
        log.topic(topic)
    described = [as_data(Admin(log).describe(name)) for name in names]
    if as_json:
        print_json(described)
        return
    for one in described:
        changed = ",".join(f"{k}={v}" for k, v in one["config"].items() if DEFAULTS.get(k) != v)
        typer.echo(
            f"Topic: {one['topic']}\tTopicId: {one['id']}\tPartitionCount: {one['partitions']}\tConfigs: {changed}"
        )
        print_rows(one["offsets"], ["partition", "earliest", "end", "records"], as_json=False)


@app.command()
@takes_log()
def alter(
    log: Log,
    topic: Name,
    partitions: Annotated[int | None, typer.Option(help="The new number of partitions.")] = None,
    config: Settings = None,
    delete_config: Annotated[
        list[str] | None, typer.Option(help="Reset this setting to its default; may be given several times.")
    ] = None,
    if_exists: IfExists = False,
) -> None:
    """Give a topic more partitions, or other settings."""
    settings: dict[str, str | int | None] = {
        **parse_pairs(config or [], "--config"),
        **dict.fromkeys(delete_config or []),
    }
    if partitions is None and not settings:
        raise UsageError("what is to change? Give --partitions, --config or --delete-config")
    if if_exists and topic not in log.topics():
        return
    if settings:
        log.alter_config(topic, settings)
    if partitions is not None:
        log.add_partitions(topic, partitions)
    print_note(f"Altered topic {topic}.")


def _matching(log: Log, wanted: str | None) -> list[str]:
    """Return the topic of that name, or else the topics that match it as a regular expression, as Kafka's tool does."""
    names = sorted(log.topics())
    if wanted is None or wanted in names:
        return names if wanted is None else [wanted]
    try:
        return [name for name in names if re.fullmatch(wanted, name)]
    except re.error:
        raise UnknownTopicError(f"there is no topic {wanted!r}") from None


def as_data(description: TopicDescription) -> dict[str, Any]:
    """Return a description as plain data, for JSON."""
    topic = description.topic
    offsets = [
        {"partition": number, "earliest": extent.earliest, "end": extent.end, "records": extent.end - extent.earliest}
        for number, extent in sorted(description.extents.items())
    ]
    return {
        "topic": topic.name,
        "id": topic.id,
        "partitions": topic.partitions,
        "config": dict(topic.config),
        "offsets": offsets,
    }
