"""A real Kafka broker for tests: one process, no containers, nothing to install but Java.

`kafka_jars` fetches the jars of Kafka once, and keeps them in the user's cache directory. `SecureListener` is the
broker's listener with TLS and SASL, with a certificate of its own and ACLs.
"""

from __future__ import annotations

import base64
import fcntl
import importlib.util
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from headrace.class_archive import ClassArchive
from headrace.directories import cache_directory
from headrace.errors import StreamsError
from headrace.log.open import open_log
from headrace.log.protocol import Closeable, Records
from headrace.model.ids import TopicPartition

VERSION = "4.3.1"
BROKER, STREAMS = "kafka_2.13", "kafka-streams"
CONNECT = "connect-runtime"
_JARS = {BROKER: 46, STREAMS: 13, CONNECT: 60}  # or so: for the progress that is shown
_DEPENDENCIES = """\
<ivy-module version="2.0">
  <info organisation="headrace" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    {wanted}
  </dependencies>
</ivy-module>
"""
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default->default"/>'
_LOGGER = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
_OLD_LOGGER = ("org.slf4j", "slf4j-reload4j", "1.7.36")  # of Kafka before 4


def _is_new(version: str) -> bool:
    """Whether a Kafka writes its log by log4j 2; those before 4 have log4j 1."""
    return int(version.partition(".")[0]) >= 4


def kafka_jars(java: str, cache: Path | None = None, module: str = BROKER, version: str = VERSION) -> Path:
    """The folder of a broker's jars; they are fetched if they are not there, by one process at a time.

    The module STREAMS is Kafka Streams, for tests beside it.
    """
    name = f"{module.partition('_')[0]}-{version}"
    logger = _LOGGER if _is_new(version) else _OLD_LOGGER
    return fetch_jars(java, name, [("org.apache.kafka", module, version), logger], _JARS[module], cache)


def fetch_jars(
    java: str, name: str, wanted: Sequence[tuple[str, str, str]], count: int | None = None, cache: Path | None = None
) -> Path:
    """The folder `name` with the jars of modules (group, artifact, version) and of all that they need.

    They are fetched from Maven's repository if they are not there, by one process at a time; `count` of them, or so.
    """
    cache = cache or cache_directory()
    jars = cache / name
    if not jars.is_dir():
        jars.parent.mkdir(parents=True, exist_ok=True)
        with alone(jars.with_name(f"{jars.name}.lock")):
            if not jars.is_dir():
                _fetch(java, jars, wanted, count)
    return jars


@contextmanager
def alone(lock: Path) -> Generator[None]:
    """While one process is inside, others wait; a process that dies lets the next one in."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(java: str, jars: Path, modules: Sequence[tuple[str, str, str]], count: int | None) -> None:
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="fetching-") as folder:
        wanted = Path(folder) / "ivy.xml"
        lines = "\n    ".join(_DEPENDENCY.format(*module) for module in modules)
        wanted.write_text(_DEPENDENCIES.format(wanted=lines), encoding="utf-8")
        command = [java, "-jar", str(_ivy()), "-ivy", str(wanted), "-cache", f"{folder}/ivy"]
        command += ["-retrieve", f"{folder}/jars/[artifact]-[revision].[ext]"]
        _, first, version = modules[0]
        said = _run_ivy(command, f"{first} {version}", count)
        fetched = Path(folder) / "jars"
        if not list(fetched.glob(f"{first}-*.jar")):
            raise StreamsError(
                f"the jars of {first} {version} could not be fetched. Ivy needs to reach a Maven repository; its last "
                "words:\n" + "".join(said[-20:])
            )
        shutil.move(fetched, jars)


def _run_ivy(command: list[str], what: str, jars: int | None) -> list[str]:
    """Runs Ivy, shows how far it is, and gives what it said."""
    said: list[str] = []
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    with progress, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:  # noqa: S603
        bar = progress.add_task(f"Fetching the jars of {what}, once", total=jars)
        for line in process.stdout or ():
            said.append(line)
            if "[SUCCESSFUL ]" in line:
                progress.advance(bar)
    return said


def _ivy() -> Path:
    """Ivy comes with PySpark, which is only looked for, not imported."""
    found = importlib.util.find_spec("pyspark")
    folders = found.submodule_search_locations if found else None
    for folder in folders or ():
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise StreamsError("a Kafka broker is fetched with the Ivy that comes with PySpark: pip install 'headrace[spark]'")


_PASSWORD = "headrace"  # noqa: S105 - of a certificate that is made for a test
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


class SecureListener:
    """A listener at `port` of 127.0.0.1 for users, passwords by name."""

    def __init__(self, directory: Path, java: str, port: int, users: Mapping[str, str]) -> None:
        self.port, self._users = port, users
        self._store, self._certificate = directory / "broker.p12", directory / "broker.pem"
        if not self._certificate.exists():
            self._make_certificate(Path(java).resolve().with_name("keytool"))

    def _make_certificate(self, keytool: Path) -> None:
        common = ["-alias", "broker", "-keystore", str(self._store), "-storepass", _PASSWORD, "-storetype", "PKCS12"]
        names = ["-dname", "CN=localhost", "-ext", "san=dns:localhost,ip:127.0.0.1", "-validity", "3650"]
        for action in (
            ["-genkeypair", "-keyalg", "RSA", "-keysize", "2048", *names],
            ["-exportcert", "-rfc", "-file", str(self._certificate)],
        ):
            done = subprocess.run([str(keytool), *action, *common], capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                raise StreamsError(f"{keytool} could not make a certificate: {done.stdout}{done.stderr}")

    def broker_settings(self, plain: int, controller: int) -> dict[str, str]:
        """What the broker needs beside the rest; whoever comes through the plain listener may do everything."""
        known = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},USERS://127.0.0.1:{self.port},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},USERS://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,USERS:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.name.users.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.users.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
            "listener.name.users.plain.sasl.jaas.config": f"{_PLAIN} required {known};",
            "listener.name.users.ssl.keystore.location": str(self._store),
            "listener.name.users.ssl.keystore.type": "PKCS12",
            "listener.name.users.ssl.keystore.password": _PASSWORD,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def format_options(self) -> list[str]:
        """The users for SCRAM, as options of the command that formats a broker's storage."""
        users = [f"SCRAM-SHA-512=[name={name},password={password}]" for name, password in self._users.items()]
        return [word for user in users for word in ("--add-scram", user)]

    def client_settings(self, user: str, mechanism: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": self._users[user],
            "ssl.ca.location": str(self._certificate),
        }


# Short-lived and beside the tests that use it: the JIT compiler's second stage and a parallel GC would only compete.
_JVM = ("-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true")
_START_TIMEOUT = 90.0  # seconds; it takes 3 to 6, and much longer on a busy machine
_PORTS = 12_000, 32_000
_API_VERSIONS = struct.pack(">hhi h", 18, 0, 7, -1)  # key, version, correlation, no client id
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.partitions=1
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
broker.heartbeat.interval.ms=100
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=100
# The times of records are often those of a recording, or small numbers.
log.retention.ms=-1
log.message.timestamp.after.max.ms=9223372036854775807
"""
# Of a member of a cluster.
_REPLICATED = """\
default.replication.factor={brokers}
min.insync.replicas={least}
offsets.topic.replication.factor={brokers}
transaction.state.log.replication.factor={brokers}
transaction.state.log.min.isr={least}
share.coordinator.state.topic.replication.factor={brokers}
share.coordinator.state.topic.min.isr={least}
"""
# For the controller alone.
_WITHOUT_BROKER = """\
process.roles=controller
listeners=CONTROLLER://127.0.0.1:{controller}
broker.session.timeout.ms=100
"""
_ACTIVE, _GONE = "Performing controller activation", "because its session has timed out"
_NOTICED = 2.0  # seconds after which a controller must have noticed that, unless it knew it before
_OLD_LOGGING = """\
log4j.rootLogger={level}, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d %p %m (%c)%n
"""
_LOGGING = """\
rootLogger.level = {level}
rootLogger.appenderRefs = stdout
rootLogger.appenderRef.stdout.ref = STDOUT
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n
"""


class KafkaBroker(Closeable):
    """A single Kafka broker with a port and a directory of its own; `with KafkaBroker() as broker:` starts and ends it.

    `address` is what `open_log` and `Application(log=...)` take, `bootstrap` what Kafka's own clients take. The jars
    are fetched once. For tests of faults there are `kill`, `restart`, `pause`, `resume`. `settings` are the broker's,
    `java_options` those of its JVM: without them it is one that starts fast and takes little. `version` is Kafka's.

    With `users`, passwords by name, it has a second address for them, with TLS and SASL, where they may do what ACLs
    allow: `secured`, and what clients need there: `settings_of("ada")`. The first address is for whoever makes ACLs.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        settings: dict[str, str] | None = None,
        *,
        java_options: Sequence[str] | None = None,
        users: dict[str, str] | None = None,
        port: int = 0,
        version: str = VERSION,
        member: Member | None = None,
    ) -> None:
        java = find_java("a Kafka broker")
        self._version, self._member = version, member
        self._is_own_directory = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-broker-") if directory is None else directory)
        self.port = port or free_port()
        self._controller = free_port() if member is None else member.controllers[member.node]
        jars = kafka_jars(java, version=version)
        options = [*_JVM, *broker_archive(java, jars).options()] if java_options is None else java_options
        self._command = [java, *options, "-cp", f"{jars}/*"]
        self._process: subprocess.Popen[bytes] | None = None
        self.directory.mkdir(parents=True, exist_ok=True)
        self._door = SecureListener(self.directory, java, free_port(), users) if users else None
        self._set_up(
            {**(self._door.broker_settings(self.port, self._controller) if self._door else {}), **(settings or {})}
        )
        if member is None:
            self._start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"kafka://{self.bootstrap}"

    @property
    def secured(self) -> str:
        """The address for users."""
        return f"kafka://127.0.0.1:{self._guarded.port}"

    def settings_of(self, user: str, mechanism: Literal["PLAIN", "SCRAM-SHA-512"] = "PLAIN") -> dict[str, str]:
        """What the clients of a user need: to be given to `Application(config=...)` or `open_log`."""
        return self._guarded.client_settings(user, mechanism)

    @property
    def _guarded(self) -> SecureListener:
        if self._door is None:
            raise StreamsError('the broker knows no users: KafkaBroker(users={"ada": "secret"})')
        return self._door

    @property
    def output(self) -> Path:
        """The file with what the broker says."""
        return self.directory / "broker.log"

    @property
    def pid(self) -> int:
        return self._running().pid

    # ------------------------------------------------------------------------------------------------------- faults
    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def stop(self) -> None:
        """Asks it to end, and waits until it has."""
        process = self._running()
        process.terminate()
        process.wait()
        self._process = None

    def restart(self, *, at_once: bool = False, clean: bool = False) -> None:
        """Starts it again on what is in its directory, after a crash if it still runs.

        With `clean` it is asked to end. With `at_once` it starts before its cluster has noticed that it was away.
        """
        if self._process is not None and clean:
            self.stop()
        if self._process is not None:
            self.kill()
        if not at_once and self._member is None:
            self._bury()
        self._start()

    def pause(self) -> None:
        """Stops it in the middle of whatever it does; connections stay open and nobody answers."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # The signal acts a little later: until all threads stand still, they may answer.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends it and forgets what it stored, unless the directory was given."""
        if self._process is not None:
            self.kill()
        if self._is_own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    # --------------------------------------------------------------------------------------------------- how it runs
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise StreamsError("the broker was killed: restart() it")
        return self._process

    def _set_up(self, settings: dict[str, str]) -> None:
        fixed = _SETTINGS.format(port=self.port, controller=self._controller, data=self.directory / "data")
        if self._member is not None:
            fixed += self._member.settings
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        self._properties.write_text(fixed + "".join(lines), encoding="utf-8")
        if (self.directory / "data" / "meta.properties").is_file():
            self._bury()
        else:
            cluster = _new_cluster() if self._member is None else self._member.cluster
            # One in 64 begins with a dash, which is no option.
            users = [] if self._door is None else self._door.format_options()
            self._run(
                "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(self._properties), *users
            )

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _run(self, *arguments: str) -> None:
        with self.output.open("ab") as output:
            done = subprocess.run([*self._command, *arguments], stdout=output, stderr=output, check=False)  # noqa: S603
        if done.returncode:
            raise _failure("could not be set up", self.output)

    def _bury(self) -> None:
        """Lets a controller without a broker find out that the broker was killed.

        Else the next one takes itself for the one before, until that one's session is over. If it has to end
        transactions just then, Kafka takes their partitions for deleted, and nobody ever sees that they have ended.
        """
        own = self._properties.read_text(encoding="utf-8").splitlines(keepends=True)
        alone = [line for line in own if not line.startswith("advertised.listeners=")]
        properties, said = self.directory / "controller.properties", self.directory / "controller.log"
        properties.write_text("".join(alone) + _WITHOUT_BROKER.format(controller=self._controller), encoding="utf-8")
        said.unlink(missing_ok=True)
        controller, began = self._launched(properties, "INFO", said), list[float]()

        def is_noticed() -> bool:
            text = said.read_text(encoding="utf-8", errors="replace")
            if _ACTIVE in text:
                began.append(time.monotonic())
            return _GONE in text or (bool(began) and time.monotonic() > began[0] + _NOTICED)

        self._await(controller, is_noticed, said)
        controller.terminate()
        controller.wait()

    def _start(self) -> None:
        self.launch()
        self.await_start()

    def launch(self) -> None:
        """Starts the process; `await_start` waits until it answers."""
        self._process = self._launched(self._properties, "WARN", self.output)

    def await_start(self) -> None:
        """Waits until the process, which was launched, answers."""
        assert self._process is not None  # noqa: S101
        try:
            self._await(self._process, lambda: _answers(self.port), self.output)
        except StreamsError:
            self._process = None
            raise

    def _launched(self, properties: Path, level: str, said: Path) -> subprocess.Popen[bytes]:
        logging = self.directory / f"logging-{level}.properties"
        text, option = (
            (_LOGGING, "log4j2.configurationFile=")
            if _is_new(self._version)
            else (_OLD_LOGGING, "log4j.configuration=file:")
        )
        logging.write_text(text.format(level=level), encoding="utf-8")
        arguments = [*self._command, f"-D{option}{logging}", "kafka.Kafka", str(properties)]
        with said.open("ab") as output:
            # A session of its own: Ctrl-C is for the tests, which then end it.
            return subprocess.Popen(  # noqa: S603
                arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _await(self, process: subprocess.Popen[bytes], is_so: Callable[[], bool], said: Path) -> None:
        end = time.monotonic() + _START_TIMEOUT
        while not is_so():
            if process.poll() is not None:
                raise _failure("ended while it started", said)
            if time.monotonic() > end:
                process.kill()
                process.wait()
                raise _failure(f"did not answer within {_START_TIMEOUT:g} seconds", said)
            time.sleep(0.05)


def broker_archive(java: str, jars: Path) -> ClassArchive:
    """Returns the archive of the classes that a broker loads, which need not exist."""
    return ClassArchive(jars.name, f"{java} {jars}")


def create_broker_archive() -> Path:
    """Starts a broker, has it do what brokers do in tests, and has its JVM write the classes that it has loaded."""
    java = find_java("a Kafka broker")
    archive = broker_archive(java, kafka_jars(java))
    with archive.create() as options, KafkaBroker(java_options=[*_JVM, *options]) as broker:
        with closing(open_log(broker.address)) as log:
            at = TopicPartition("classes", 0)
            log.create_topic(at.topic)
            log.append([(at, Records([b"key"], [b"value"], [0]))])
            log.commit("classes", {at: 1})
            list(log.read(at, 0))
        broker.stop()
    return archive.path


class Member(NamedTuple):
    """What a broker has to know of the cluster that it is a member of."""

    cluster: str
    node: int
    controllers: Mapping[int, int]  # ports, by node

    @property
    def settings(self) -> str:
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.controllers.items())
        count = len(self.controllers)
        own = f"node.id={self.node}\ncontroller.quorum.voters={voters}\n"
        return own + _REPLICATED.format(brokers=count, least=count // 2 + 1)


class KafkaCluster(Closeable):
    """Several brokers, all of which have a replica of every partition: `with KafkaCluster() as cluster:`.

    `nodes` are the brokers, by id. Topics take writes as long as most of them run.
    """

    def __init__(self, brokers: int = 3, settings: dict[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-cluster-"))
        ports, cluster = {node: free_port() for node in range(1, brokers + 1)}, _new_cluster()
        self.nodes = {
            node: KafkaBroker(self.directory / str(node), settings, member=Member(cluster, node, ports))
            for node in ports
        }
        try:
            for node in self.nodes.values():
                node.launch()  # the first one answers when most of them run
            for node in self.nodes.values():
                node.await_start()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return "kafka://" + ",".join(node.bootstrap for node in self.nodes.values())

    def close(self) -> None:
        """Ends all brokers and forgets what they stored."""
        for node in self.nodes.values():
            node.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def _new_cluster() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _failure(what: str, said: Path) -> StreamsError:
    last = said.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
    return StreamsError(f"the Kafka broker {what}; the end of {said}:\n" + "\n".join(last))


def find_java(program: str) -> str:
    """The `java` of JAVA_HOME, or of the PATH; `program` needs it."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH, and JAVA_HOME is not set"
        raise StreamsError(f"{program} needs Java 17 or newer, and there is no `java` {where}")
    return found


def free_port() -> int:
    """Not one of those that clients are given: while a broker is away, one of them would take its port."""
    while True:
        port = random.randrange(*_PORTS)  # noqa: S311 - nothing secret
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _answers(port: int) -> bool:
    """Whether a broker answers the first question that every client asks."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
            return connection.recv(8)[4:8] == _API_VERSIONS[4:8]
    except OSError:
        return False
