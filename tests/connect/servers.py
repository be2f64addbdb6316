"""Real servers for the tests of sources and sinks: PostgreSQL, MariaDB, Redis and mosquitto, from Debian's packages.

    with PostgresServer() as server:
        psycopg.connect(server.dsn)
        server.kill()       # as a machine that fails
        server.start()      # again, with the data that it had

A server listens on a free port of 127.0.0.1 and keeps its data in a directory of its own. A database server does not
run as root: if the tests do, it runs as the user that its package has made. `make servers` installs the packages.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

SECONDS = 60.0  # for a server to start or to stop: the machine may be busy


class Server(ABC):
    """A server process. `kill` and `start` keep the port and the data."""

    program = ""  # the command, which must be installed
    user: str | None = None  # who runs it, if the tests run as root

    def __init__(self) -> None:
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._as = self.user if os.geteuid() == 0 else None
        self.directory = Path(tempfile.mkdtemp(prefix=f"headrace-{Path(self.program).name}-"))
        if self._as is not None:
            shutil.chown(self.directory, self._as, self._as)
        try:
            self._prepare()
            self.start()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _ping(self) -> None:
        """Raises an exception while the server does not answer."""

    def _prepare(self) -> None:
        """Makes the files that the server needs."""
        _installed(self.program)

    def _call(self, *command: str) -> None:
        done = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, check=False, user=self._as, group=self._as
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")

    @property
    def log(self) -> str:
        """What the server has printed."""
        file = self.directory / "server.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self.directory, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True, user=self._as, group=self._as,
            )  # fmt: skip
        end = time.monotonic() + SECONDS
        while True:
            try:
                self._ping()
            except Exception:  # noqa: BLE001 - each client has its own
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{self.program} did not start: {self.log}") from None
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """Ends the server at once, with all of its processes."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends the server as an administrator does; it breaks off its connections."""
        self._end(signal.SIGINT if self.program.endswith("postgres") else signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            try:
                if how is signal.SIGKILL:
                    os.killpg(process.pid, how)
                else:
                    process.send_signal(how)
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class PostgresServer(Server):
    """PostgreSQL with logical replication; the user `postgres` needs no password."""

    program, user = "postgres", "postgres"

    def _prepare(self) -> None:
        # Debian has its programs in a directory for each version.
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        self.programs = found[-1] if found else Path(_installed("postgres")).parent
        data = str(self.directory / "data")
        self._call(str(self.programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N")

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.directory,
            "wal_level": "logical", "max_replication_slots": 20, "max_wal_senders": 20, "fsync": "off",
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.programs / "postgres"), "-D", str(self.directory / "data"), *options]

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _ping(self) -> None:
        import psycopg  # noqa: PLC0415

        psycopg.connect(self.dsn, connect_timeout=5).close()


class MariaDbServer(Server):
    """MariaDB; the user `root` needs no password, the database is `test`."""

    program, user = "mariadbd", "mysql"

    def _prepare(self) -> None:
        _installed(self.program)
        self._call(
            _installed("mariadb-install-db"), "--no-defaults", f"--datadir={self.directory / 'data'}",
            "--auth-root-authentication-method=normal",
        )  # fmt: skip

    def _command(self) -> list[str]:
        return [
            _installed(self.program), "--no-defaults", f"--datadir={self.directory / 'data'}", f"--port={self.port}",
            "--bind-address=127.0.0.1", f"--socket={self.directory / 'socket'}", "--innodb-flush-log-at-trx-commit=0",
        ]  # fmt: skip

    @property
    def url(self) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/test"

    def _ping(self) -> None:
        import pymysql  # noqa: PLC0415

        with pymysql.connect(host="127.0.0.1", port=self.port, user="root") as connection:
            connection.cursor().execute("create database if not exists test")


class RedisServer(Server):
    """Redis, which keeps what it has only in memory: after `kill` and `start` it is empty."""

    program = "redis-server"

    def _command(self) -> list[str]:
        return [
            _installed(self.program), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--dir", str(self.directory),
        ]  # fmt: skip

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _ping(self) -> None:
        import redis  # noqa: PLC0415

        with redis.Redis.from_url(self.url) as client:
            client.ping()


class MosquittoServer(Server):
    """An MQTT broker without users."""

    program = "mosquitto"

    def _prepare(self) -> None:
        (self.directory / "mosquitto.conf").write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\n")

    def _command(self) -> list[str]:
        return [_installed(self.program), "-c", str(self.directory / "mosquitto.conf")]

    def _ping(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), 5).close()


def _installed(program: str) -> str:
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise RuntimeError(f"{program} is not installed: run `make servers`")
    return found


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
