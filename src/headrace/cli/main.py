"""The command line: `headrace COMMAND …`."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated, Any

import typer

from headrace.cli import (
    broker,
    changelogs,
    config,
    consume,
    demo,
    doctor,
    groups,
    produce,
    reset,
    run,
    status,
    topics,
    topology,
)
from headrace.cli.printing import hush, say
from headrace.errors import StreamsError, UnknownTopicError

DEBUG = "HEADRACE_DEBUG"

app = typer.Typer(
    name="headrace",
    help="Kafka Streams for Python, on Spark.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("demo")(demo.demo)
app.command("topology")(topology.topology)
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(groups.app, name="groups")
app.command("reset")(reset.reset)
app.command("changelogs")(changelogs.changelogs)
app.add_typer(broker.app, name="broker")
app.command("doctor")(doctor.doctor)
app.command("config")(config.config)
status.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"headrace {version('headrace')}\n")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option(help="Show the traceback of a failure.", envvar=DEBUG)] = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Kafka Streams for Python, on Spark."""
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)


def main() -> None:
    """Runs the command and ends with 0: fine, 1: it failed, or 2: it was called wrongly."""
    code = exit_code(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        hush()
    sys.exit(code)


def exit_code(arguments: list[str]) -> int:
    """Runs the command; says how it ended."""
    try:
        result: Any = app(arguments, prog_name="headrace", standalone_mode=False)
    except typer.TyperException as error:
        return _explain_usage(error, arguments)
    except typer.Abort:
        return 1
    except BrokenPipeError:
        hush()
        return 0
    except (StreamsError, OSError, ValueError, TypeError, ImportError) as error:
        return _explain(error, arguments)
    return result if isinstance(result, int) else 0


def _explain_usage(error: typer.TyperException, arguments: list[str]) -> int:
    """One sentence, and for wrong usage where to read more."""
    say(
        error.format_message() if type(error).__name__ == "NoArgsIsHelpError" else f"headrace: {error.format_message()}"
    )
    context = getattr(error, "ctx", None)
    if error.exit_code == 2 and context is not None and type(error).__name__ != "NoArgsIsHelpError":
        say(f"Try '{context.command_path} --help'.")
    _trace(arguments)
    return error.exit_code


def _explain(error: Exception, arguments: list[str]) -> int:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, UnknownTopicError):
        text = text.partition(": create it, ")[0] + ": `headrace topics list` shows them, `topics create` makes one"
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    say(f"headrace: {text}")
    if not _trace(arguments):  # which has the notes
        for note in getattr(error, "__notes__", ()):
            say("`headrace --debug …` shows where in the code." if "Traceback" in note else note)
    return 1


def _trace(arguments: list[str]) -> bool:
    """Shows the traceback, if it is asked for."""
    is_wanted = "--debug" in arguments or os.environ.get(DEBUG, "").lower() not in {"", "0", "false"}
    if is_wanted:
        traceback.print_exc()
    return is_wanted
