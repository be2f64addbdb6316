"""The example programs: beside the sources in a clone, inside the package when it is installed.

`headrace demo`: an example on Spark and the embedded log, with a generator of events, live.
"""

from __future__ import annotations

import ast
import random
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

import headrace
from headrace.app import Application
from headrace.cli.options import AsJson
from headrace.cli.printing import Failed, out, say, show
from headrace.cli.quiet_spark import start_spark
from headrace.clients import Consumer, ConsumerRecord, Producer
from headrace.log import open_log
from headrace.spark.application_state import ended_by_signals

_PACKAGE = Path(headrace.__file__).parent


def folder() -> Path:
    """Where the examples are."""
    found = [place for place in (_PACKAGE / "programs/examples", _PACKAGE.parents[1] / "examples") if place.is_dir()]
    if not found:
        raise Failed(f"the examples are not where they should be, {_PACKAGE / 'programs'}: install headrace again")
    return found[0]


def names() -> dict[str, str]:
    """The examples, with what they say of themselves."""
    files = sorted(path for path in folder().glob("*.py") if path.stem not in {"events", "__init__"})
    return {path.stem: _first_sentence(path) for path in files}


def program(name: str) -> ModuleType:
    """An example, imported as the workers will import it."""
    if name not in names():
        raise Failed(f"there is no example {name!r} (there are: {', '.join(names())})")
    parent = str(folder().parent)
    if parent not in sys.path:
        sys.path.insert(0, parent)
    return import_module(f"examples.{name}")


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


A_SECOND = 40  # events
ROWS = 15
PARTITIONS = 2
PATIENCE = 60.0  # seconds until the time runs, whether or not there are results


def demo(
    name: Annotated[str, typer.Argument(help="Which example.")] = "stock_statistics",
    seconds: Annotated[float | None, typer.Option(help="End by itself, so long after the first result.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Keep log and checkpoint here.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the examples.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run an example live, with made-up events, until Ctrl-C."""
    if list_all:
        rows = [{"name": example, "about": about} for example, about in names().items()]
        show(rows, ["name", "about"], as_json=as_json)
        return
    example = program(name)
    with ExitStack() as stack:
        place = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
        last = stack.enter_context(_running(name, example, place.absolute(), seconds))
        out().print(last)
    _hint(name, example, directory)


@contextmanager
def _running(name: str, example: Any, place: Path, seconds: float | None) -> Generator[Table]:
    """Runs an example; gives the last table."""
    address = f"file:{place / 'log'}"
    with closing(open_log(address)) as log:
        for topic in {*example.TOPICS, *example.OUTPUTS} - log.topics().keys():
            log.create_topic(topic, PARTITIONS)
        state = str(place / "state")
        app = Application(
            example.APPLICATION, example.build(), address, checkpoint=str(place / "checkpoint"), state_dir=state
        )
        start_spark(app)
        with ended_by_signals() as over:
            app.start()
            generator = threading.Thread(target=_generate, args=(example, address, over))
            generator.start()
            try:
                say(f"{name} is running on Spark. Ctrl-C ends it. Meanwhile, elsewhere:")
                say(
                    f"  headrace consume --log {address} --topic {next(iter(example.TOPICS))} --property print.key=true"
                )
                yield _watch(name, example, address, over, seconds)
            finally:
                over.set()
                generator.join()
                app.stop()


def _generate(example: Any, address: str, over: threading.Event) -> None:
    """Writes the example's events to the log, until it is over."""
    with Producer(address) as producer:
        for event in example.events(random.Random(7)):  # noqa: S311 - made-up events
            key, value = example.TOPICS[event.topic]
            producer.send(
                event.topic,
                event.key,
                event.value,
                key_serde=key,
                value_serde=value,
                timestamp=event.timestamp,
                headers=event.headers,
            )
            if over.wait(1 / A_SECOND):
                return


def _watch(name: str, example: Any, address: str, over: threading.Event, seconds: float | None) -> Table:
    """Shows the latest value of every key that the example writes, until it is over."""
    latest: dict[tuple[str, str], str] = {}
    seen, begun, clock = 0, time.monotonic() + PATIENCE, time.monotonic
    with (
        Consumer(address, auto_offset_reset="earliest") as consumer,
        Live(_table(name, latest, 0), console=out(), refresh_per_second=5, transient=True) as live,
    ):
        consumer.subscribe(*example.OUTPUTS)
        while not over.is_set() and (seconds is None or clock() < begun + seconds):
            records = consumer.poll(200)
            if records:
                begun = min(begun, clock())  # on a slow machine the first ones take a while
            for record in records:
                key, value = _shown(example, record)
                latest.pop((record.topic, key), None)
                latest[record.topic, key] = value
                seen += 1
            live.update(_table(name, latest, seen))
    return _table(name, latest, seen)


def _shown(example: Any, record: ConsumerRecord) -> tuple[str, str]:
    """Key and value of a result, for people."""
    decoded: list[Any] = [
        None if raw is None else serde.decode(raw)
        for raw, serde in zip((record.key, record.value), example.OUTPUTS[record.topic], strict=True)
    ]
    key, value = decoded
    if hasattr(key, "window"):
        return f"{key.key} [{key.window.start // 1000 % 86400} s]", str(value)
    return str(key), str(value)


def _table(name: str, latest: dict[tuple[str, str], str], seen: int) -> Table:
    table = Table("topic", "key", "latest value", title=f"{name}: {seen:,} results, the last {ROWS} keys")
    for (topic, key), value in list(latest.items())[-ROWS:]:
        table.add_row(Text(topic), Text(key), Text(value))
    return table


def _hint(name: str, example: Any, directory: Path | None) -> None:
    say(f"Next: the program is {folder() / name}.py. `headrace demo --list` shows the others,")
    if directory is None:
        say(f"`headrace demo {name} --directory demo` keeps log and state: the next run goes on where it ended.")
        return
    topic = next(iter(example.OUTPUTS))
    say(f"`headrace consume --log file:{directory}/log --topic {topic} --from-beginning` reads what came out, and the")
    say("same demo in the same directory goes on where this one ended.")
