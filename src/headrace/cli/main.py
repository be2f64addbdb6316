"""The command line, `headrace COMMAND …`: the table of commands, and how a command ends."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

import typer

from headrace.cli import (
    broker,
    config,
    connect,
    consume,
    dashboard,
    dead_letters,
    debug,
    demo,
    doctor,
    groups,
    new,
    plan,
    prepare,
    produce,
    query,
    registry,
    replay,
    rescale,
    reset,
    run,
    state,
    status,
    topics,
    topology,
)
from headrace.cli.options import check_no_credentials
from headrace.cli.output import print_note, silence_stdout
from headrace.errors import StreamsError, UnknownTopicError
from headrace.secrets import log_to_stderr, mask_secrets

DEBUG = "HEADRACE_DEBUG"

app = typer.Typer(
    name="headrace",
    help="Kafka Streams for Python, on Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("new")(new.new)
app.command("run")(run.run)
app.command("demo")(demo.demo)
app.command("topology")(topology.topology)
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(groups.app, name="groups")
app.command("reset")(reset.reset)
app.command("replay")(replay.replay)
app.command("trace")(debug.trace)
app.command("replay-batch")(debug.replay_batch)
app.command("changelogs")(state.changelogs)
app.add_typer(broker.app, name="broker")
app.add_typer(registry.app, name="registry")
app.add_typer(connect.app, name="connect")
app.command("doctor")(doctor.doctor)
app.command("prepare")(prepare.prepare)
app.command("config")(config.config)
app.command("query")(query.query)
app.add_typer(state.state, name="state")
app.add_typer(state.checkpoints, name="checkpoint")
app.command("status")(status.status)
app.command("top")(status.top)
app.command("pause")(run.pause)
app.command("resume")(run.resume)
app.command("snapshot")(run.snapshot)
app.command("scale")(run.scale)
app.command("plan")(plan.plan)
app.command("rescale")(rescale.rescale)
app.command("dashboard")(dashboard.dashboard)
app.command("replica")(dashboard.replica)
app.add_typer(dead_letters.app, name="dead-letters")
app.command("drops")(status.drops)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"headrace {version('headrace')}\n")
        raise typer.Exit


@app.callback()
def configure_logging(
    debug: Annotated[bool, typer.Option(help="Show the traceback of a failure.", envvar=DEBUG)] = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Kafka Streams for Python, on Spark."""
    log_to_stderr(logging.DEBUG if debug else logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.ERROR)


def main() -> None:
    """Run the command, and exit with 0 for success, 1 for failure, or 2 for wrong usage."""
    try:
        code = exit_code(sys.argv[1:])
    except Exception:  # noqa: BLE001 - Python would print the passwords in it, too
        code = 1
        _print_traceback_masked()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
    sys.exit(code)


@cache
def command() -> Any:
    """The command with all of its subcommands; to build it takes 80 ms."""
    return typer.main.get_command(app)


def exit_code(arguments: list[str]) -> int:
    """Run the command, and return its exit code."""
    try:
        check_no_credentials(arguments)
        result: Any = command()(arguments, prog_name="headrace", standalone_mode=False)
    except typer.TyperException as error:
        return _explain_usage(error, arguments)
    except (typer.Abort, KeyboardInterrupt):
        return 1
    except BrokenPipeError:
        silence_stdout()
        return 0
    except (StreamsError, OSError, ValueError, TypeError, ImportError) as error:
        return _explain(error, arguments)
    return result if isinstance(result, int) else 0


def _explain_usage(error: typer.TyperException, arguments: list[str]) -> int:
    """Print what is wrong with the arguments, and how to get help."""
    is_help = type(error).__name__ == "NoArgsIsHelpError"
    print_note(error.format_message() if is_help else f"headrace: {mask_secrets(error.format_message())}")
    context = getattr(error, "ctx", None)
    if error.exit_code == 2 and context is not None and not is_help:
        print_note(f"Try '{context.command_path} --help'.")
    _print_traceback(arguments)
    return error.exit_code


def _explain(error: Exception, arguments: list[str]) -> int:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, UnknownTopicError):
        text = text.partition(": create it, ")[0] + ": `headrace topics list` shows them, `topics create` makes one"
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    print_note(f"headrace: {mask_secrets(text)}")
    if not _print_traceback(arguments):  # the traceback contains the notes
        for note in getattr(error, "__notes__", ()):
            print_note("`headrace --debug …` shows where in the code." if "Traceback" in note else mask_secrets(note))
    return 1


def _print_traceback(arguments: list[str]) -> bool:
    """Print the traceback if `--debug` or the environment asks for it."""
    is_wanted = "--debug" in arguments or os.environ.get(DEBUG, "").lower() not in {"", "0", "false"}
    if is_wanted:
        _print_traceback_masked()
    return is_wanted


def _print_traceback_masked() -> None:
    sys.stderr.write(mask_secrets(traceback.format_exc()))
