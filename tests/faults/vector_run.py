"""Applications of the oracle's cases in one process: `python -m tests.faults.vector_run FOLDER RUN`.

It runs until it is ended. `FOLDER/<case>/settled` has the ends of the input topics up to which a case is processed and
delivered. The kills are in `FOLDER/run-<RUN>/kills`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from headrace.app import Application
from headrace.log.open import open_log
from headrace.spark.session import session
from tests.faults.application_run import start, stop_what_a_dead_driver_left
from tests.faults.kills import Kill, Killer
from tests.oracle.language import Case
from tests.oracle.spark_host import configuration
from tests.oracle.topologies import Program
from tests.oracle.vectors import NAMED, cases

PAUSE = 0.02  # seconds


def find_case(name: str) -> Case:
    return next(case for case in cases(NAMED) if case["name"] == name)


def input_topics(case: Case) -> list[str]:
    return sorted({step["pipe"]["topic"] for step in case["steps"]})


def main(folder: Path, run: str) -> None:
    logging.basicConfig(format="%(levelname)s: %(message)s")
    kills = msgspec.json.decode((folder / f"run-{run}" / "kills").read_bytes(), type=list[Kill])
    killer = Killer(folder / f"run-{run}", os.getpid(), kills)
    stop_what_a_dead_driver_left()
    session("local[2,4]")
    names = [path.name for path in sorted(folder.iterdir()) if (path / "log").is_dir()]
    threads = [threading.Thread(target=serve, args=(folder / name, killer), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def serve(folder: Path, killer: Killer) -> None:
    case = find_case(folder.name)
    app = Application(
        f"oracle-{folder.name}", Program(case).topology, f"file:{folder}/log",
        checkpoint=str(folder / "checkpoint"), state_dir=str(folder / "state"), at_step=killer,
        config={**configuration(dict(case)), "num.stream.threads": 2, "receipt.max.bytes": 0},
    )  # fmt: skip
    start(app, patient=True)
    log, before = open_log(f"file:{folder}/log"), None
    while True:
        ends = [(at.topic, extent.end) for at, extent in sorted(log.extents(input_topics(case)).items())]
        if ends == before:
            app._check()
            time.sleep(PAUSE)
            continue
        app.drain()
        before = ends
        (folder / "settled.new").write_bytes(msgspec.json.encode(ends))
        (folder / "settled.new").replace(folder / "settled")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
