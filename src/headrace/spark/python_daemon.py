"""Spark's Python daemon, with Headrace imported: its workers, which become slots, are forks and start at once.

Spark runs it as `python -m headrace.spark.python_daemon`, by the setting `spark.python.daemon.module`, in sessions that
Headrace makes on one machine.
"""

from __future__ import annotations

import signal
from importlib import import_module

from pyspark import daemon

from headrace.spark.slot_process import end_quietly

NEEDED = ("pyspark.worker", "headrace.spark.slot")  # in every worker that becomes a slot

if __name__ == "__main__":
    for name in NEEDED:
        import_module(name)
    # A service manager sends SIGTERM to all processes. The daemon ends when Spark closes its standard input.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    end_quietly(daemon)
    daemon.manager()
