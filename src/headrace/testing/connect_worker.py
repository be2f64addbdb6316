"""A real Kafka Connect worker: one process, from jars, with any connector that Maven's repository has."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, StreamsError
from headrace.log.protocol import Closeable
from headrace.testing.broker import CONNECT, fetch_jars, find_java, free_port, kafka_jars

_START_TIMEOUT = 180.0  # seconds; it takes about 10, and much longer on a busy machine
_STOP_TIMEOUT = 30.0
_JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true")
_SETTINGS = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "exactly.once.source.support": "enabled",
    "offset.storage.partitions": "1",
    "status.storage.partitions": "1",
    "config.storage.replication.factor": "-1",
    "offset.storage.replication.factor": "-1",
    "status.storage.replication.factor": "-1",
    "offset.flush.interval.ms": "1000",
}
# Without these a source connector creates no topics, unless the cluster does it by itself. -1: as the cluster says.
_TOPICS = {"topic.creation.default.partitions": "-1", "topic.creation.default.replication.factor": "-1"}
_LOGGING = """\
rootLogger.level = WARN
rootLogger.appenderRefs = stdout
rootLogger.appenderRef.stdout.ref = STDOUT
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n
"""


def fetch_plugin(java: str, plugin: str) -> Path:
    """Returns the folder with the jars of a connector, GROUP:ARTIFACT:VERSION; they are fetched once."""
    parts = plugin.split(":")
    if len(parts) != 3 or not all(re.fullmatch(r"[\w.-]+", part) for part in parts):
        raise ConfigError(
            f"a plugin is GROUP:ARTIFACT:VERSION, such as io.debezium:debezium-connector-postgres:3.3.1.Final, not "
            f"{plugin!r}"
        )
    group, artifact, version = parts
    return fetch_jars(java, f"connect-plugins/{artifact}-{version}", [(group, artifact, version)])


class ConnectWorker(Closeable):
    """A Kafka Connect worker for the cluster at `bootstrap`; `with ConnectWorker(...) as worker:` starts and ends it.

    `plugins` are connectors, GROUP:ARTIFACT:VERSION of Maven's repository. Records are JSON without schemas unless
    `settings` of the worker, or the connector's own, say otherwise. Source connectors that can write exactly once.
    """

    def __init__(
        self,
        bootstrap: str,
        plugins: Sequence[str] = (),
        *,
        name: str = "headrace-connect",
        directory: Path | str | None = None,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        java = find_java("Kafka Connect")
        folders = [fetch_plugin(java, plugin) for plugin in plugins]
        self._is_own_directory = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-connect-") if directory is None else directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        fixed = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "listeners": f"http://127.0.0.1:{self.port}",
            "plugin.path": str(self._link_plugins(folders)),
            **{f"{kind}.storage.topic": f"{name}-{kind}s" for kind in ("config", "offset")},
            "status.storage.topic": f"{name}-status",
        }
        properties = self.directory / "worker.properties"
        lines = [f"{key}={value}\n" for key, value in {**_SETTINGS, **fixed, **(settings or {})}.items()]
        properties.write_text("".join(lines), encoding="utf-8")
        logging = self.directory / "log4j2.properties"
        logging.write_text(_LOGGING, encoding="utf-8")
        command = [java, *_JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{kafka_jars(java, module=CONNECT)}/*"]
        command += ["org.apache.kafka.connect.cli.ConnectDistributed", str(properties)]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self._await_start()
        except BaseException:
            self.close()
            raise

    def _link_plugins(self, folders: Sequence[Path]) -> Path:
        """Makes a folder with a link to each plugin: the worker loads all plugins of a folder."""
        plugins = self.directory / "plugins"
        shutil.rmtree(plugins, ignore_errors=True)
        plugins.mkdir()
        for folder in folders:
            (plugins / folder.name).symlink_to(folder)
        return plugins

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> Path:
        """The file with what the worker prints."""
        return self.directory / "worker.log"

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends it. The cluster keeps its connectors and their offsets, so another worker goes on with them."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._is_own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _await_start(self) -> None:
        end = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                # It answers before it has joined its group, and then accepts no connectors.
                request(f"{self.url}/connectors")
            except StreamsError as error:
                if self._process.poll() is not None or time.monotonic() > end:
                    last = self.output.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
                    raise StreamsError(
                        f"the Kafka Connect worker did not start; the end of {self.output}:\n" + "\n".join(last)
                    ) from error
                time.sleep(0.2)
            else:
                return


# ------------------------------------------------------------------------------------------------ connectors, by REST
def request(url: str, method: str = "GET", body: object = None) -> Any:
    """Sends a request to the REST interface of a worker. Returns its JSON, or raises what it says."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)  # noqa: S310 - http
    try:
        with urllib.request.urlopen(asked, timeout=30) as response:  # noqa: S310
            text = response.read()
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(said)["message"]
        raise StreamsError(f"Kafka Connect answers {error.code}: {said}") from error
    except OSError as error:
        raise StreamsError(f"no Kafka Connect worker answers at {url}: {error}") from error
    return json.loads(text) if text else None


def deploy_connector(url: str, config: Mapping[str, Any]) -> str:
    """Creates or changes a connector, and returns its name.

    `config` is what Connect's REST interface takes: {"name": …, "config": {…}}, or the settings with the name in them.
    """
    settings = config.get("config", config)
    name = config.get("name") or settings.get("name")
    if not name or "connector.class" not in settings:
        raise ConfigError('a connector has a "name" and a "connector.class"')
    settings = {**_TOPICS, **{key: str(value) for key, value in settings.items() if key != "name"}}
    request(f"{url}/connectors/{urllib.parse.quote(str(name), safe='')}/config", "PUT", {**settings, "name": name})
    return str(name)


def list_connectors(url: str) -> list[dict[str, Any]]:
    """Returns each connector with its state, its tasks, and the first line of the error if one has failed."""
    found: list[dict[str, Any]] = []
    for name, about in sorted(request(f"{url}/connectors?expand=status").items()):
        status = about["status"]
        parts = [status["connector"], *status["tasks"]]
        error = next((part["trace"].splitlines()[0] for part in parts if part.get("trace")), None)
        states = [task["state"] for task in status["tasks"]]
        found.append(
            {"name": name, "type": status["type"], "state": parts[0]["state"], "tasks": states, "error": error}
        )
    return found
