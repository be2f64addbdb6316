"""`headrace replay`: run a topology over a range of the past beside the live application, and stop at its end.

The replay is an application of its own: PREFIX before the id, PREFIX before every topic that it writes, a checkpoint of
its own. Its first manifest has the positions at which it begins and those at which it stops.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from headrace.app import Application
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import manifest_numbers
from headrace.checkpoint.recovery import read_fingerprint
from headrace.checkpoint.storage import open_storage
from headrace.cli.options import AsJson, Target, load_application, open_checkpoint
from headrace.cli.output import CommandError, UsageError, print_json, print_note, stderr
from headrace.cli.reset import keep_growth, parse_datetime, reset_checkpoint
from headrace.cli.run import prefix_outputs, start_spark
from headrace.clients.admin import offsets_at
from headrace.log.open import open_log
from headrace.log.protocol import Log
from headrace.model.ids import TopicPartition
from headrace.spark.topics import topics_read
from headrace.topology.nodes import Source


def replay(
    target: Target,
    into: Annotated[str, typer.Option(help="The prefix of the replay's id and of the topics that it writes.")],
    start: Annotated[
        str | None, typer.Option("--from", help="Read from YYYY-MM-DDTHH:MM:SS.sss on. [the first record]")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Read up to YYYY-MM-DDTHH:MM:SS.sss. [now]")] = None,
    master: Annotated[str | None, typer.Option(help="local[4], spark://HOST:7077, yarn, k8s://…")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Its own checkpoint. [PREFIX and the id, -checkpoint]")] = None,
    application_id: Annotated[str | None, typer.Option(help="The live application's id. Only with a Topology.")] = None,
    log: Annotated[str | None, typer.Option(help="The log. Only with a Topology.", envvar="HEADRACE_LOG")] = None,
    config: Annotated[Path | None, typer.Option(help="A .properties file. Only with a Topology.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a topology over a range of the past, beside the live application, into topics with a prefix."""
    since = None if start is None else parse_datetime(start, "--from")
    until = None if end is None else parse_datetime(end, "--to")
    if since is not None and until is not None and until <= since:
        raise UsageError(f"--to {end} is not after --from {start}")
    options = {"--application-id": application_id, "--log": log, "--checkpoint": None, "--config": config}
    app = load_application(target, options, ignored={"--log"})
    grown = find_growth(app)
    app = make_replay(app, into, checkpoint)
    ranges = begin_replay(app, since, until, grown)
    records = sum(stop - first for first, stop in ranges.values())
    start_spark(app, master)
    with stderr().status(f"{app.application_id} reads {records:,} offsets …"):
        app.run_available()
    if as_json:
        rows = [{"topic": at.topic, "partition": at.partition, "from": a, "to": b} for at, (a, b) in ranges.items()]
        print_json({"application_id": app.application_id, "checkpoint": app.setup.checkpoint, "ranges": rows})
    else:
        print_note(f"{app.application_id} has read {records:,} offsets. Its state is in {app.setup.checkpoint}.")


def make_replay(app: Application, prefix: str, checkpoint: str | None) -> Application:
    """Turn an application into its replay: another id, and a prefix before every topic that it writes."""
    name = f"{prefix}{app.application_id}"
    app = prefix_outputs(app, name, prefix, checkpoint or f"{name}-checkpoint", flag="--into")
    app.topology.sources = ()  # the live application reads other systems into the log
    return app


def find_growth(app: Application) -> Fingerprint | None:
    """Return which topics have grown, as the checkpoint of the live application knows it; None if it has none."""
    try:
        return keep_growth(read_fingerprint(open_checkpoint(app.setup.checkpoint)))
    except CommandError:
        return None


def begin_replay(
    app: Application, since: int | None, until: int | None, grown: Fingerprint | None
) -> dict[TopicPartition, tuple[int, int]]:
    """Create the first manifest of a replay. Return the offsets that it reads of each partition."""
    setup = app.setup
    storage = open_storage(setup.checkpoint)
    if manifest_numbers(storage):
        raise CommandError(
            f"{storage.describe()} has a checkpoint already: choose another --into or --checkpoint, or delete it"
        )
    with closing(open_log(setup.log, setup.config.client_settings)) as log:
        ranges = find_ranges(log, app, since, until)
        starts, stops = ({at: range_[place] for at, range_ in ranges.items()} for place in (0, 1))
        reset_checkpoint(storage, log, setup.application_id, starts, stops, grown=grown, force=False)
    return ranges


def find_ranges(
    log: Log, app: Application, since: int | None, until: int | None
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the first offset of each partition, and the one after its last. Global tables begin at their first."""
    graph = app.setup.graph
    topics = sorted(topics_read(graph, app.application_id, log.topics()))
    if not topics:
        raise CommandError(f"the log has none of the topics that {app.application_id} reads")
    extents = log.extents(topics)
    nodes = (graph.nodes[name] for name in graph.global_stores.values())
    of_globals = {topic for source in nodes if isinstance(source, Source) for topic in source.topics}
    starts = {at: extent.earliest for at, extent in extents.items()}
    if since is not None:
        named = {at: extent for at, extent in extents.items() if at.topic not in of_globals}
        starts |= offsets_at(log, named, since)
    stops = {at: extent.end for at, extent in extents.items()} if until is None else offsets_at(log, extents, until)
    return {at: (starts[at], max(starts[at], stops[at])) for at in extents}
