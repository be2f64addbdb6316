"""`headrace query`: asks a store, from the checkpoint, whether the application runs or not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import orjson
import typer

from headrace.app import Application
from headrace.cli.options import AsJson, AsOf, Checkpoint, Program, follower_of, load
from headrace.cli.printing import Failed, WrongUsage, say, show
from headrace.errors import UnsuitableQueryError
from headrace.query.queries import (
    KeyQuery,
    MultiVersionedKeyQuery,
    PrefixQuery,
    Query,
    RangeQuery,
    SessionKeyQuery,
    SessionRangeQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from headrace.query.rendering import key_of, key_text, to_form
from headrace.query.views import Snapshot


def query(
    store: Annotated[str, typer.Argument(help="The store's name.")],
    key: Annotated[str | None, typer.Argument(help="A key: text as it is, others as JSON.")] = None,
    checkpoint: Checkpoint = "",
    between: Annotated[tuple[str, str] | None, typer.Option("--range", help="Keys from A to B.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Keys that begin with it.")] = None,
    sql: Annotated[str | None, typer.Option(help="SQL by Spark, of a table that is called store.")] = None,
    limit: Annotated[int, typer.Option(help="Rows at most.")] = 100,
    as_of: AsOf = None,
    topology: Program = None,
    as_json: AsJson = False,
) -> None:
    """Look into a store."""
    if not checkpoint:
        raise WrongUsage("which application? Give --checkpoint, or set HEADRACE_CHECKPOINT")
    if sum(given is not None for given in (key, between, prefix, sql)) > 1:
        raise WrongUsage("give a KEY, --range, --prefix or --sql, one of them")
    if sql is not None:
        _by_spark(checkpoint, store, sql, as_of, topology, as_json=as_json)
        return
    follower = follower_of(checkpoint, topology)
    snapshot = follower.refresh() if as_of is None else follower.at(as_of)
    rows = list(islice(_rows(snapshot, store, key, between, prefix), limit))
    if key is not None and not rows:
        raise Failed(f"{store} has nothing for {key!r}, as of batch {snapshot.batch}")
    show(rows, [*rows[0]] if rows else ["key", "value"], as_json=as_json)
    say(f"As of batch {snapshot.batch}.")


def _rows(
    snapshot: Snapshot, store: str, key: str | None, between: tuple[str, str] | None, prefix: str | None
) -> Iterator[dict[str, Any]]:
    serde = snapshot.catalog.shelf(store).key
    if prefix is not None:
        asked: list[Query] = [PrefixQuery(key_of(prefix, serde))]
    elif key is not None:
        wanted = key_of(key, serde)
        asked = [KeyQuery(wanted), WindowKeyQuery(wanted), SessionKeyQuery(wanted), MultiVersionedKeyQuery(wanted)]
    else:
        low, high = (None, None) if between is None else (key_of(text, serde) for text in between)
        asked = [RangeQuery(low, high), RangeQuery(), WindowRangeQuery(), SessionRangeQuery()]
    found, question = _first_answer(snapshot, store, asked)
    if between is not None and question != asked[0]:  # of all keys, since this kind of store has no ranges of them
        first, last = (serde.encode(key_of(text, serde)) for text in between)
        found = (entry for entry in found if first <= serde.encode(getattr(entry[0], "key", entry[0])) <= last)
    if isinstance(question, KeyQuery):
        return iter([] if found is None else [{"key": key, "value": _shown(found)}])
    if isinstance(question, MultiVersionedKeyQuery):
        return ({"key": key, "value": _shown(r.value), "from": r.timestamp, "to": r.valid_to} for r in found)
    if isinstance(question, WindowKeyQuery):
        return ({"key": key, "start": start, "value": _shown(value)} for start, value in found)
    if isinstance(question, RangeQuery | PrefixQuery):
        return ({"key": key_text(k, serde), "value": _shown(getattr(v, "value", v))} for k, v in found)
    return (
        {"key": key_text(at.key, serde), "start": at.window.start, "end": at.window.end, "value": _shown(value)}
        for at, value in found
    )


def _first_answer(snapshot: Snapshot, store: str, asked: list[Query]) -> tuple[Any, Query]:
    """The answer to the first question that fits the kind of the store."""
    for question in asked[:-1]:
        try:
            return snapshot.query(store, question).result, question
        except UnsuitableQueryError:
            continue
    return snapshot.query(store, asked[-1]).result, asked[-1]


def _shown(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else orjson.dumps(to_form(value)).decode()


def _by_spark(checkpoint: str, store: str, sql: str, as_of: int | None, program: str | None, *, as_json: bool) -> None:
    from headrace.spark.session import session  # noqa: PLC0415 - Spark takes seconds to start
    from headrace.spark.store_frames import select  # noqa: PLC0415

    thing = None if program is None else load(program)
    config = thing.setup.config if isinstance(thing, Application) else None
    topology = thing.topology if isinstance(thing, Application) else thing
    frame = select(session(), checkpoint, store, sql, as_of, topology=topology, config=config)
    show([row.asDict() for row in frame.collect()], frame.columns, as_json=as_json)
