"""`headrace doctor`: check that this machine has what an application needs."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import tempfile
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer
from rich.text import Text

from headrace.app import Application
from headrace.checkpoint.ledger import manifest_numbers, read_ledger
from headrace.checkpoint.recovery import read_fingerprint
from headrace.checkpoint.storage import Storage, open_storage
from headrace.cli.options import AsJson, CommandConfig, LogAddress, Program, Servers, load, log_at
from headrace.cli.output import print_json, stdout
from headrace.directories import check_directory, state_directory
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError, StreamsError, UnsafePathError
from headrace.extras import needs_extra
from headrace.query.verification import verify_checkpoint
from headrace.secrets import mask_secrets
from headrace.spark.java import find_java

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    log: LogAddress = None,
    bootstrap_server: Servers = None,
    command_config: CommandConfig = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="The checkpoint to check.", envvar="HEADRACE_CHECKPOINT")
    ] = None,
    state_dir: Annotated[str | None, typer.Option(help="The directory of local state to check.")] = None,
    port: Annotated[list[int] | None, typer.Option(help="A port that must be free; may be repeated.")] = None,
    topology: Program = None,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine can run applications, and say what to do if not. Exit with 1 if it cannot."""
    loaded = None if topology is None else load(topology)
    app = loaded if isinstance(loaded, Application) else None
    if app is not None:  # it knows where its parts are
        checkpoint = checkpoint or app.setup.checkpoint
        state_dir = state_dir or app.setup.state_dir
        if log is bootstrap_server is command_config is None:
            log = app.setup.log
    found = [
        check_python(),
        check_java(),
        check_pyspark(),
        check_pandas(),
        check_log(log, bootstrap_server, command_config),
        check_checkpoint(checkpoint),
        *([] if app is None else [check_start(app)]),
        check_state_dir(state_dir),
        check_loopback(),
        *map(check_port, port or ()),
    ]
    found = [check._replace(found=mask_secrets(check.found), advice=mask_secrets(check.advice)) for check in found]
    if as_json:
        print_json([check._asdict() for check in found])
    else:
        for check in found:
            advice = f" → {check.advice}" if check.advice else ""
            line = Text.assemble(
                (f"{check.result:<4}", _STYLES[check.result]), f"  {check.what}: {check.found}{advice}"
            )
            stdout().print(line, soft_wrap=True)
    if any(check.result == "fail" for check in found):
        raise typer.Exit(1)


OLDEST_PYTHON, OLDEST_SPARK = (3, 11), (4, 3)
_ENOUGH, _TOO_LITTLE = 1 << 30, 100 << 20  # bytes of free disk: warn below the first, fail below the second


class Check(NamedTuple):
    """One requirement: what was checked, the result, what was found, and advice unless the result is ok."""

    what: str
    result: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def check_python(release: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    found = ".".join(map(str, release))
    if release >= OLDEST_PYTHON:
        return Check("Python", "ok", found)
    return Check("Python", "fail", f"{found}: too old", "use Python 3.11 or newer")


def check_java() -> Check:
    """Check the Java that Spark would start."""
    java = find_java()
    if java.trouble is None:
        return Check("Java", "ok", java.shown)
    return Check("Java", "fail", java.shown, java.remedy)


def check_pyspark() -> Check:
    found = _find_version("pyspark")
    if found is None:
        return Check("PySpark", "fail", "not installed", "pip install 'headrace[spark]'")
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST_SPARK:
        return Check("PySpark", "fail", f"{found}: too old", "pip install 'pyspark>=4.3'")
    return Check("PySpark", "ok", found)


def check_pandas() -> Check:
    found = _find_version("pandas")
    if found is None:
        return Check("pandas", "fail", "not installed", "pip install 'headrace[spark]'")
    if int(found.partition(".")[0]) >= 3:
        return Check("pandas", "fail", f"{found}: PySpark does not know it", "pip install 'pandas<3'")
    return Check("pandas", "ok", found)


def check_log(address: str | None, servers: str | None = None, config: Path | None = None) -> Check:
    if address is servers is config is None:
        return Check("log", "warn", "none given", "give --log file:DIRECTORY, or set HEADRACE_LOG, to check it")
    if servers is None and address is not None and address.startswith("file:"):
        path = Path(address.removeprefix("file:"))
        if not path.exists():
            return _check_directory("log", path, f"{address} will be created")
    try:
        with closing(log_at(address, servers, config)) as log:
            return Check("log", "ok", f"{servers or address or config}, {len(log.topics())} topics")
    except StreamsError as error:
        return Check("log", "fail", str(error), "correct the address, or start the broker")


def check_checkpoint(place: str | None) -> Check:
    """Check that the checkpoint can be written, and that everything in it that a start reads is as it was written."""
    if place is None:
        return Check("checkpoint", "warn", "none given", "give --checkpoint DIRECTORY to check it")
    shown = place
    if "://" not in place:
        directory = Path(place.removeprefix("file:"))
        check = _check_directory("checkpoint", directory, place)
        if check.result == "fail" or not directory.exists():
            return check
        shown = check.found
    try:
        storage = open_storage(place)
        numbers = manifest_numbers(storage)
        if not numbers:
            return Check("checkpoint", "ok", f"{shown}, no batch yet")
        problem, is_whole = find_damage(storage, numbers[-1])
    except StreamsError as error:
        return Check("checkpoint", "fail", str(error), "correct the address, the credentials, or the rights")
    if problem is not None:
        advice = "`headrace checkpoint verify` lists the damage; put a backup back, or begin again by `headrace reset`"
        return Check("checkpoint", "fail", f"an application cannot start from it: {problem}", advice)
    if not is_whole:
        return Check("checkpoint", "warn", f"{shown}, batch {numbers[-1]}, too large to read all", VERIFY)
    return Check("checkpoint", "ok", f"{shown}, batch {numbers[-1]}")


MAX_VERIFIED = 1 << 30  # bytes of state: a larger checkpoint is not read whole
VERIFY = "`headrace checkpoint verify` reads every file"


def find_damage(storage: Storage, last: int) -> tuple[str | None, bool]:
    """Return what is wrong with a checkpoint, and whether all of its files were read."""
    try:
        ledger = read_ledger(storage, last)
    except (CheckpointCorruptedError, CheckpointMismatchError) as error:
        return str(error), False
    if sum(delta.blob.size for head in ledger.tasks.values() for delta in head.chain) > MAX_VERIFIED:
        return None, False
    return next((finding.problem for finding in verify_checkpoint(storage) if finding.problem is not None), None), True


def check_start(app: Application) -> Check:
    """Check that the application can continue from its checkpoint: its id, its topology, its topics."""
    place = app.setup.checkpoint
    try:
        is_missing = "://" not in place and not Path(place).exists()
        if is_missing or read_fingerprint(open_storage(place)) is None:  # as after a reset
            with needs_extra("spark"):
                from headrace.spark.job_planner import check_topics  # noqa: PLC0415 - a test of a topology needs no Spark

            check_topics(app.setup)
            return Check("start", "ok", f"{app.application_id} begins, without state")
        plan = app.plan()
    except StreamsError as error:
        return Check("start", "fail", str(error), "correct what it says")
    if plan.decisions:
        found = f"{app.application_id} does not start: {len(plan.decisions)} to decide: {plan.decisions[0]}"
        return Check("start", "fail", found, "`headrace plan` shows all of it")
    return Check(
        "start", "ok", f"{app.application_id} can start, {'with changes' if plan.has_changes else 'as it was'}"
    )


def check_state_dir(directory: str | None) -> Check:
    try:
        place = state_directory(directory)
    except UnsafePathError as error:
        return _reject("local state", error)
    return _check_directory("local state", place, str(place))


def check_loopback() -> Check:
    """Check that processes can connect over local ports, as Spark's JVM and its workers do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            return Check("ports", "ok", "processes on this machine can connect")
    except OSError as error:
        return Check("ports", "fail", f"no port of 127.0.0.1 can be used: {error}", "allow local connections")


def check_port(number: int) -> Check:
    try:
        with socket.create_server(("127.0.0.1", number)):
            return Check(f"port {number}", "ok", "free")
    except (OSError, OverflowError) as error:
        return Check(
            f"port {number}",
            "fail",
            f"cannot be used: {error}",
            "stop the process that uses it, or choose another port",
        )


def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _reject(what: str, error: UnsafePathError) -> Check:
    return Check(what, "fail", f"{error.path} {error.problem}", error.advice)


def _check_directory(what: str, place: Path, found: str) -> Check:
    """Check that a directory, or the nearest parent that exists, is writable and has free space."""
    existing = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.exists())
    if not existing.is_dir():
        return Check(what, "fail", f"{found}: {existing} is a file", "choose another directory")
    if existing == place.absolute():
        try:
            check_directory(existing)
        except UnsafePathError as error:
            return _reject(what, error)
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check(
            what, "fail", f"{found}: {error.strerror}", f"make {existing} writable, or choose another directory"
        )
    shown = f"{found}, {free / (1 << 30):.1f} GiB free"
    if free < _TOO_LITTLE:
        return Check(what, "fail", shown, f"free space on the disk of {existing}")
    return (
        Check(what, "ok", shown)
        if free >= _ENOUGH
        else Check(what, "warn", shown, f"free space on the disk of {existing}")
    )
