"""Commands that read a checkpoint: query, state, checkpoint, status, top, dashboard and replica."""

import http.client
import json
import re
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from headrace.checkpoint.storage import DiskStorage
from headrace.cli.main import app
from headrace.model.clock import SystemClock
from headrace.query import Follower
from headrace.query.client import Client, RemoteError
from headrace.query.status import SlotReport, encode_slots
from headrace.testing.broker import free_port
from tests.checkpoint.cluster import Cluster, Ground
from tests.cli.commands import started as started_process
from tests.clocks import ManualClock
from tests.query.programs import SHOWN, THREE, started


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    place = tmp_path_factory.mktemp("status") / "checkpoint"
    cluster = started(THREE, storage=DiskStorage(place), limit=4)
    cluster.run()
    cluster.close()
    return place


@pytest.fixture(scope="module")
def command(checkpoint):
    def run(*arguments, at=checkpoint):
        return CliRunner().invoke(app, [*map(str, arguments), "--checkpoint", str(at)], standalone_mode=False)

    return run


def rows(answer):
    assert answer.exception is None, answer.exception
    return json.loads(answer.stdout)


def test_a_key_a_range_a_prefix_and_all(command):
    assert rows(command("query", "counts", "k1", "--json")) == [{"key": "k1", "value": 5}]
    assert [row["key"] for row in rows(command("query", "counts", "--range", "k2", "k4", "--json"))] == [
        "k2",
        "k3",
        "k4",
    ]
    for store in ("windows", "sessions", "versions"):
        found = {row["key"] for row in rows(command("query", store, "--range", "k2", "k4", "--json"))}
        assert found <= {"k2", "k3", "k4"}
        assert "k4" in found
    assert len(rows(command("query", "counts", "--prefix", "k", "--json"))) == 7
    assert len(rows(command("query", "counts", "--limit", "3", "--json"))) == 3
    assert "k1" in command("query", "counts", "k1").stdout


def test_every_kind_of_store_answers_in_its_way(command):
    assert rows(command("query", "windows", "k1", "--json"))[0] == {"key": "k1", "start": 0, "value": 1}
    assert rows(command("query", "sessions", "k1", "--json"))[-1] == {"key": "k1", "start": 290, "end": 290, "value": 1}
    assert rows(command("query", "versions", "k1", "--json"))[-1] == {
        "key": "k1",
        "value": "v29",
        "from": 290,
        "to": None,
    }
    assert len(rows(command("query", "windows", "--json"))) == 30
    assert rows(command("query", "plain", "k1", "--json")) == [{"key": "k1", "value": '{"value":"v29","at":290}'}]


def test_what_is_not_there_is_a_failure(command):
    assert "has nothing for 'absent'" in str(command("query", "counts", "absent").exception)
    assert "there is no store" in str(command("query", "nothing").exception)
    assert "one of them" in str(command("query", "counts", "k1", "--prefix", "k").exception)


def test_stores_are_listed_verified_and_exported(command, tmp_path):
    listed = rows(command("state", "ls", "--json"))
    assert [row["store"] for row in listed] == SHOWN
    assert listed[0]["entries"] == 7
    verified = command("state", "verify", "--json")
    assert verified.return_value == 0
    assert {row["problem"] for row in rows(verified)} == {None}
    for kind in ("parquet", "csv", "ndjson"):
        command("state", "export", "counts", "-o", tmp_path / f"counts.{kind}")
    table = pq.read_table(tmp_path / "counts.parquet")
    assert sorted(table["key"].to_pylist()) == [f"k{n}" for n in range(7)]
    assert len((tmp_path / "counts.csv").read_text().splitlines()) == 8
    assert json.loads((tmp_path / "counts.ndjson").read_text().splitlines()[0])["value"] in {4, 5}
    assert "name it .parquet" in str(command("state", "export", "counts", "-o", tmp_path / "x.doc").exception)


def test_a_checkpoint_is_listed_and_damage_in_it_is_found(command, checkpoint, tmp_path):
    listed = rows(command("checkpoint", "ls", "--json"))
    assert listed[-1]["batch"] == Follower.open(checkpoint).refresh().batch
    assert command("checkpoint", "verify").return_value == 0
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(checkpoint), str(copy)], check=True)
    last = max((copy / "manifests").iterdir())
    raw = bytearray(last.read_bytes())
    raw[len(raw) // 3] ^= 1
    last.write_bytes(raw)
    damaged = command("checkpoint", "verify", at=copy)
    assert damaged.return_value == 1
    assert "checksum" in damaged.stdout
    assert "there is no checkpoint" in str(command("checkpoint", "ls", at=tmp_path / "none").exception)


def test_the_status_shows_the_slots_of_a_running_application(command, tmp_path):
    program, now = THREE, SystemClock().now()
    ground = Ground(log=program.log(), storage=DiskStorage(tmp_path / "running"), clock=ManualClock(now))
    cluster = Cluster(ground, program, limit=4)
    cluster.run()
    slots = [SlotReport(0, "one", 11, ("0_0",), {"0_1": 0}), SlotReport(1, "two", 12, ("0_1",), {"0_0": 3})]
    cluster.coordinator.describe_owner(lambda: encode_slots(slots, 7, 2))
    ground.clock.advance(6000)
    cluster.coordinator.renew_lease()
    told = rows(command("status", "--json", at=tmp_path / "running"))
    assert told["state"] == "RUNNING"
    assert told["slots"][1] == {"slot": 1, "host": "two", "process": 12, "tasks": ["0_1"], "standbys": {"0_0": 3}}
    assert told["moves"] == 7
    assert told["queued_slots"] == 2
    shown = command("status", at=tmp_path / "running").stdout.splitlines()
    at = next(number for number, line in enumerate(shown) if line.split()[:2] == ["slot", "host"])
    assert [line.split() for line in shown[at + 1 : at + 5]] == [
        ["0", "one", "11", "0_0", "0_1"],
        ["1", "two", "12", "0_1", "0_0", "(3", "behind)"],
        ["7", "tasks", "have", "moved", "to", "another", "slot", "since", "the", "start."],
        ["2", "slots", "wait", "for", "a", "core", "of", "Spark."],
    ]
    cluster.close()
    assert rows(command("status", "--json", at=tmp_path / "running"))["slots"] == []


def test_the_status_says_that_it_has_stopped(command):
    told = rows(command("status", "--json"))
    assert (told["state"], told["healthy"]) == ("NOT_RUNNING", True)
    assert told["delivered"] == told["batch"]
    assert "Not running." in command("top", "--once").stdout


def test_the_status_says_why_it_has_stopped(command, tmp_path):
    cluster = started(THREE, storage=DiskStorage(tmp_path / "failed"), limit=4)
    cluster.run()
    cluster.coordinator.close(error="counts failed on lines/0 at offset 7: TypeError")
    told = rows(command("status", "--json", at=tmp_path / "failed"))
    assert (told["state"], told["healthy"]) == ("ERROR", False)
    assert told["verdict"] == "Stopped by an error: counts failed on lines/0 at offset 7: TypeError"
    cluster.kill()


# ------------------------------------------------------------------------------------------------------- the web server
@contextmanager
def server(checkpoint, name, *options, **environment):
    """A server of the checkpoint, in a process of its own, with the first line that it prints."""
    arguments = (name, "--checkpoint", checkpoint, "--port", "0", *options)
    with started_process(*arguments, environment=environment) as process:
        yield process, process.stderr.readline()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dashboard", "replica"])
def test_a_server_prints_a_link_once_and_answers_until_a_signal(checkpoint, name):
    with server(checkpoint, name) as (process, line):
        link = line.split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=[0-9a-f]{48}", link)
        with Client(link) as client:
            assert client.get("counts", "k1").value == 5
        with Client(link.partition("/#")[0]) as nobody, pytest.raises(RemoteError, match="give the token"):
            nobody.stores()
        process.send_signal(signal.SIGTERM)
        assert link.partition("=")[2] not in process.communicate(timeout=20)[1]
        assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dashboard", "replica", "replica on disk"])
def test_a_server_that_is_killed_leaves_the_checkpoint_alone_and_the_next_one_answers(checkpoint, kind, tmp_path):
    def files():
        return {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}

    before, options = files(), ("--state-dir", tmp_path) if kind.endswith("on disk") else ()
    port = free_port()  # the same for both
    for _ in range(2):
        with server(checkpoint, kind.split()[0], "--no-token", "--port", port, *options) as (process, line):
            with Client(line.split()[0]) as client:
                assert client.get("counts", "k1").value == 5
                process.kill()
            assert process.wait(20) == -signal.SIGKILL
    assert files() == before


@pytest.mark.slow
def test_a_token_comes_from_a_file_or_the_environment_and_is_not_printed(checkpoint, tmp_path):
    file = tmp_path / "token"
    file.write_text("open sesame\n")
    for options, environment in ((("--token-file", file), {}), ((), {"HEADRACE_TOKEN": "open sesame"})):
        with server(checkpoint, "dashboard", *options, **environment) as (process, line):
            assert "sesame" not in line
            with Client(line.split()[0], token="open sesame") as client:  # noqa: S106
                assert client.stores()
            arguments = Path(f"/proc/{process.pid}/cmdline")
            assert not arguments.exists() or b"sesame" not in arguments.read_bytes()


@pytest.mark.slow
def test_no_token_is_a_clear_word_and_health_has_its_port(checkpoint):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ("--no-token", "--health-port", port)
    with server(checkpoint, "dashboard", *options, HEADRACE_TOKEN="unused") as (_, line):  # noqa: S106
        with Client(line.split()[0]) as client:
            assert client.stores()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/ready")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize("name", ["dashboard", "replica", "run", "pause", "resume", "snapshot", "scale"])
def test_a_token_among_the_arguments_is_refused(headrace, name):
    given = {"run": ["a:b"], "scale": ["2"]}.get(name, [])
    outcome = headrace(name, *given, "--token", "sesame")
    assert outcome.code == 2
    assert "give --token-file FILE, or set HEADRACE_TOKEN" in outcome.err
    assert "sesame" not in outcome.err


@pytest.mark.parametrize(
    "content, sentence", [(None, "No such file"), ("", "one line, the token"), ("a\nb", "one line, the token")]
)
def test_a_token_file_without_a_token_is_explained(headrace, tmp_path, content, sentence):
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    outcome = headrace("pause", "--token-file", file)
    assert outcome.code == 1
    assert sentence in outcome.err


def test_a_token_file_and_no_token_contradict_each_other(headrace, tmp_path):
    outcome = headrace("dashboard", "--checkpoint", tmp_path, "--no-token", "--token-file", tmp_path / "token")
    assert (outcome.code, "not both" in outcome.err) == (2, True)
