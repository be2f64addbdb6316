"""Real servers for the tests of sources and sinks: PostgreSQL, MariaDB, Redis and mosquitto, from Debian's packages.

`S3Server` and `KafkaServer` have the same methods.

    with PostgresServer() as server:
        psycopg.connect(server.dsn)
        server.kill()       # as a machine that fails
        server.start()      # again, with the data that it had

A server listens on a free port of 127.0.0.1 and keeps its data in a directory of its own. A database server does not
run as root: if the tests do, it runs as the user that its package has made. `make servers` installs the packages.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Self

from headrace.testing import KafkaBroker

ROOT = Path(__file__).parents[2]
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

    place = dsn

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
            "--bind-address=127.0.0.1", f"--socket={self.directory / 'socket'}", "--innodb-flush-log-at-trx-commit=2",
        ]  # fmt: skip

    @property
    def url(self) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/test"

    place = url

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
    """An MQTT broker without users. With `keeps_sessions` it has sessions and messages again after `stop` and `start`.

    `kill` loses what it has not written to disk, which is the broker's own guarantee.
    """

    program = "mosquitto"

    def __init__(self, *, keeps_sessions: bool = False) -> None:
        self.keeps_sessions = keeps_sessions
        super().__init__()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "max_queued_messages 0", "user root"]
        if self.keeps_sessions:
            lines += ["persistence true", f"persistence_location {self.directory}/"]
        (self.directory / "mosquitto.conf").write_text("".join(f"{line}\n" for line in lines))

    def _command(self) -> list[str]:
        return [_installed(self.program), "-c", str(self.directory / "mosquitto.conf")]

    def _ping(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), 5).close()


class S3Server:
    """An S3-compatible server behind a gate: `kill` closes the gate, so that nobody reaches the server."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.s3"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdout
        address = json.loads(self._process.stdout.readline())
        self._gate = Gate(int(address.rpartition(":")[2]))
        self._places = itertools.count()

    @property
    def place(self) -> str:
        """A new place in the bucket, with the options for a client."""
        settings = f"endpoint=http://127.0.0.1:{self._gate.port}&region=us-east-1&access_key_id=someone"
        return f"s3://bucket/{next(self._places)}?{settings}&secret_access_key=secret"

    def kill(self) -> None:
        self._gate.close()

    stop = kill

    def start(self) -> None:
        self._gate.open()

    def close(self) -> None:
        self._gate.close()
        self._process.communicate()  # it ends with its input

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Gate:
    """Passes on connections to a port of 127.0.0.1. A closed gate refuses new ones, and breaks off the others."""

    def __init__(self, target: int) -> None:
        self._target, self.port = target, _free_port()
        self._sockets = set[socket.socket]()
        self.open()

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), name="gate", daemon=True).start()

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets |= {client, server}
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self._sockets.discard(end)


class KafkaServer:
    """A Kafka broker of its own, to be killed."""

    def __init__(self) -> None:
        self._broker = KafkaBroker()
        self.place = self._broker.address

    def kill(self) -> None:
        self._broker.kill()

    stop = kill

    def start(self) -> None:
        self._broker.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._broker.close()


def _installed(program: str) -> str:
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise RuntimeError(f"{program} is not installed: run `make servers`")
    return found


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
