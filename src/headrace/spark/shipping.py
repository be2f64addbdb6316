# pyright: basic
"""How a job gets to the processes that run it, and what went wrong there back."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from pyspark import SparkFiles, cloudpickle
from pyspark.sql import SparkSession

from headrace.errors import StreamsError
from headrace.spark.job import Job
from headrace.spark.wire import Failed


def ship(spark: SparkSession, job: Job, path: Path) -> None:
    """Writes a job to a file that is on every host of the session, under its name.

    Where workers run on other hosts, modules of the user's own travel with the job.
    """
    here = is_local(spark)
    own = [] if here else list(own_modules())
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        path.write_bytes(cloudpickle.dumps(job))
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)
    if not here:
        spark.sparkContext.addFile(str(path))


def load_job(path: str) -> Job:
    return cloudpickle.loads(located(path).read_bytes())


def located(path: str) -> Path:
    """Where the file is on this host."""
    there = Path(path)
    return there if there.exists() else Path(SparkFiles.get(there.name))


def is_local(spark: SparkSession) -> bool:
    """Whether all tasks run on this machine."""
    return str(spark.sparkContext.master).startswith("local")


def own_modules() -> Iterator[ModuleType]:
    """Modules that are not installed: a worker on another host could not import them."""
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not file.startswith(installed) and name.partition(".")[0] not in {"__main__", "headrace"}:
            yield module


def failed(error: StreamsError) -> Failed:
    """An error, to be sent to the driver."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickled = cloudpickle.dumps((error, error.__cause__))
        cloudpickle.loads(pickled)
    except Exception:  # noqa: BLE001 - an exception of the user's may be anything
        pickled = b""
    return Failed(str(error), trace, pickled)


def error_of(failure: Failed) -> StreamsError:
    """The error that a worker sent, with its cause."""
    if not failure.error:
        return StreamsError(f"{failure.text}\n{failure.trace}")
    error, cause = cloudpickle.loads(failure.error)
    error.__cause__ = cause
    error.add_note(f"In the worker:\n{failure.trace}")
    return error
