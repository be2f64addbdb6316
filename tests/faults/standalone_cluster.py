"""A Spark standalone cluster from PySpark's own package: a master and workers, each a process that tests may kill.

    with StandaloneCluster(folder) as cluster:
        worker = cluster.add_worker()
        ...  # Spark at `cluster.master`, with `cluster.environment` in the environment of the driver
        worker.kill()

A worker stands for a host. Its executors and their Python workers are in its session, so `WorkerProcess.processes` is
everything that a host would take with it. All of them share the file system, and have the same address. Workers that
are apart (`is_apart`) have addresses of their own; the default directories of local state are always their own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import pyspark

from headrace.spark.java import spark_archive
from tests.faults.deployment import PATIENCE, ROOT, members
from tests.faults.kills import children_of, is_java

SPARK_HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"
MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
REGISTERED = "Successfully registered with master"
READY = "Successfully registered with driver"
EXECUTOR = "CoarseGrainedExecutorBackend"
# The JVMs only coordinate: their compilers and collectors must not compete with the work.
SMALL_JVM = " ".join(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *spark_archive().options()])
DEFAULTS = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SMALL_JVM,
}


class DaemonProcess:
    """A class of Spark in a JVM of its own, in a session of its own."""

    def __init__(self, cluster: StandaloneCluster, name: str, *command: str, **environment: str) -> None:
        self.folder = cluster.folder / name
        self.folder.mkdir()
        with (self.folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *command],
                cwd=self.folder,
                env={**os.environ, **cluster.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def await_output(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """Waits until the process has printed something."""
        end = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.output)) is None:
            assert self._process.poll() is None, f"{self.folder.name} has ended: {self.output[-3000:]}"
            assert time.monotonic() < end, f"{self.folder.name} never said {pattern}: {self.output[-3000:]}"
            time.sleep(0.02)
        return found

    def kill(self) -> None:
        """Kills the process alone, as when it crashes."""
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """Kills the process and everything that it has started, as when its host fails."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()

    def processes(self) -> list[int]:
        """The process and everything that it has started."""
        return list(members(self.pid))


class WorkerProcess(DaemonProcess):
    """A worker, which starts executors. What they print is in files of its working directory."""

    def await_executor(self) -> None:
        """Waits until the first executor has registered with its driver."""
        end = time.monotonic() + PATIENCE
        while not any(READY in file.read_text(errors="replace") for file in self.folder.glob("work/*/*/stderr")):
            assert time.monotonic() < end, f"{self.folder.name} has no executor: {self.output[-3000:]}"
            time.sleep(0.02)

    def executors(self) -> list[int]:
        return [process for process in self.processes() if EXECUTOR in command_of(process)]

    def python_workers(self) -> list[int]:
        """The daemons of the executors fork them."""
        daemons = [process for process in children_of(self.executors()) if not is_java(process)]
        return children_of(daemons)


class StandaloneCluster:
    """A master at `master`, and the workers that tests add. `is_apart` gives each worker an address of its own."""

    def __init__(self, folder: Path, cores: int = 2, *, is_apart: bool = False) -> None:
        self.folder, self._cores, self._is_apart = folder, cores, is_apart
        configuration = folder / "conf"
        configuration.mkdir(parents=True)
        lines = [f"{name} {value}\n" for name, value in DEFAULTS.items()]
        (configuration / "spark-defaults.conf").write_text("".join(lines))
        self.environment = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(configuration),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "192m",
            # Executors are replaced for as long as a test likes to kill them.
            "SPARK_DAEMON_JAVA_OPTS": f"{SMALL_JVM} -Dspark.deploy.maxExecutorRetries=-1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",  # of the Python workers
        }
        self.workers: list[WorkerProcess] = []  # tests remove the ones that they have killed
        self._daemons: list[DaemonProcess] = []
        self._master = DaemonProcess(
            self, "master", "org.apache.spark.deploy.master.Master", "--host", HOST, "--port", "0", "--webui-port", "0"
        )  # fmt: skip
        self.master = self._master.await_output(MASTER)[1]

    def add_worker(self) -> WorkerProcess:
        """Starts a worker, and waits until the master knows it."""
        return self.add_workers(1)[0]

    def add_workers(self, count: int) -> list[WorkerProcess]:
        new: list[WorkerProcess] = []
        for number in range(len(self._daemons), len(self._daemons) + count):
            name, host = f"worker-{number}", f"127.0.0.{2 + number}" if self._is_apart else HOST
            command = ["org.apache.spark.deploy.worker.Worker", "--host", host, "--port", "0", "--webui-port", "0"]
            room = ["--cores", str(self._cores), "--memory", "1g", "--work-dir", "work"]
            own = {"SPARK_LOCAL_IP": host, "XDG_STATE_HOME": str(self.folder / name / "state")}
            new.append(WorkerProcess(self, name, *command, *room, self.master, **own))
        self.workers += new
        self._daemons += new
        for worker in new:
            worker.await_output(REGISTERED)
        return new

    def close(self) -> None:
        for daemon in (*self._daemons, self._master):
            daemon.kill_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def command_of(process: int) -> str:
    """The command line of a process; "" if there is no such process any more."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
