"""A real schema registry for tests and for trying out: Apicurio, one process, nothing to install but Java.

Apicurio speaks the protocol of Confluent's registry. 3.0.9 is the newest version on Maven Central that runs on Java 17.
It is fetched once, 109 MB, and kept in the user's cache directory. Schemas are in memory.

Two things are missing: it has no GUIDs, and it cannot compare two versions of a Protobuf schema, which clients send in
binary form. 3.3.3, which needs Java 21, has no GUIDs either; it compares Protobuf, but cannot give a schema back to a
reader without a class if that imports another file. So it is no better.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.progress import DownloadColumn, Progress

from headrace.directories import cache_directory
from headrace.errors import StreamsError
from headrace.log.protocol import Closeable
from headrace.testing.broker import alone, find_java, free_port

VERSION = "3.0.9"
_ARCHIVE = f"io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
_DIGEST = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
_REPOSITORY = "https://repo1.maven.org/maven2"
# Short-lived: the JIT compiler's second stage and a parallel GC would only compete with the tests.
_JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true")
_START_TIMEOUT = 180.0  # seconds; it takes 7, and much longer on a busy machine


def registry_directory(cache: Path | None = None) -> Path:
    """The folder of the registry's program; it is fetched if it is not there, by one process at a time."""
    cache = cache or cache_directory()
    folder = cache / f"apicurio-registry-{VERSION}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with alone(cache / f"{folder.name}.lock"):
            if not folder.is_dir():
                _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    url = f"{_REPOSITORY}/{_ARCHIVE}"
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as temporary:
        archive = Path(temporary) / "archive.tar.gz"
        try:
            digest = _download(url, archive)
        except (urllib.error.URLError, TimeoutError) as error:
            raise StreamsError(f"the schema registry could not be fetched from {url}: {error}") from error
        if digest != _DIGEST:
            raise StreamsError(f"{url} is not the file that was expected: its SHA-256 is {digest}, not {_DIGEST}")
        with tarfile.open(archive) as packed:
            packed.extractall(Path(temporary) / "program", filter="data")
        shutil.move(Path(temporary) / "program", folder)


def _download(url: str, target: Path) -> str:
    """Downloads a file, shows how far it is, and returns its SHA-256."""
    digest = hashlib.sha256()
    columns = (*Progress.get_default_columns(), DownloadColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    with urllib.request.urlopen(url, timeout=60) as answer, target.open("wb") as file, progress:  # noqa: S310 - https
        bar = progress.add_task("Fetching Apicurio, once", total=int(answer.headers["Content-Length"]))
        while chunk := answer.read(1 << 20):
            digest.update(chunk)
            file.write(chunk)
            progress.advance(bar, len(chunk))
    return digest.hexdigest()


class SchemaRegistry(Closeable):
    """A schema registry with a port of its own; `with SchemaRegistry() as registry:` starts and ends it.

    `url` is what `schema.registry.url` takes. A new version of a schema must be able to read what older ones wrote
    (`compatibility="BACKWARD"`, as in Confluent's registry), unless another level is given.
    """

    def __init__(self, directory: Path | str | None = None, *, port: int = 0, compatibility: str = "BACKWARD") -> None:
        java, program = find_java("a schema registry"), registry_directory()
        self._is_own_directory = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-registry-") if directory is None else directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        jar = program / f"apicurio-registry-app-{VERSION}-runner.jar"
        settings = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(self.port), "LOG_LEVEL": "WARN"}
        with self.output.open("ab") as output:
            # A session of its own: Ctrl-C is for the tests, which then end it.
            self._process = subprocess.Popen(  # noqa: S603
                [java, *_JVM, "-jar", str(jar)],
                cwd=self.directory,
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._await(compatibility)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    @property
    def output(self) -> Path:
        """The file with what the registry says."""
        return self.directory / "registry.log"

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Ends it and forgets its schemas."""
        self._process.kill()
        self._process.wait()
        if self._is_own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _await(self, compatibility: str) -> None:
        """Waits for an answer, and sets the level of compatibility: Apicurio's own default is NONE."""
        end = time.monotonic() + _START_TIMEOUT
        while not self._set_compatibility(compatibility):
            ended = self._process.poll() is not None
            if ended or time.monotonic() > end:
                said = self.output.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
                what = "ended while it started" if ended else f"did not answer within {_START_TIMEOUT:g} seconds"
                raise StreamsError(f"the schema registry {what}; the end of {self.output}:\n" + "\n".join(said))
            time.sleep(0.1)

    def _set_compatibility(self, level: str) -> bool:
        request = urllib.request.Request(  # noqa: S310 - http
            f"{self.url}/config",
            data=f'{{"compatibility": "{level}"}}'.encode(),
            headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
            method="PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=5):  # noqa: S310 - http
                return True
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise StreamsError(f"the schema registry does not know the compatibility {level!r}") from error
            return False
        except (urllib.error.URLError, OSError):
            return False
