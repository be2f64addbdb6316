"""`headrace doctor`: what is missing, and what to do."""

import json
import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import Admin
from headrace.checkpoint.files import manifest_name
from headrace.checkpoint.ledger import manifest_numbers, read_ledger
from headrace.checkpoint.storage import DiskStorage
from headrace.cli import doctor
from headrace.errors import CheckpointMismatchError
from headrace.spark.java import install_java
from tests.other_users import give_away
from tests.query.programs import THREE, started

DEBIAN_12 = 'ID=debian\nVERSION_ID="12"'


def java(folder, version):
    """A Java that says its version, in a home of its own."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin/java"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint('openjdk version \"{version}\"', file=sys.stderr)\n")
    program.chmod(0o755)
    return folder


def test_a_machine_that_has_everything_is_fine(headrace, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "java", "17.0.15")))
    outcome = headrace("doctor", "--log", f"file:{tmp_path}/log", "--checkpoint", tmp_path / "c", "--json")
    found = {check["what"]: check["result"] for check in json.loads(outcome.out)}
    assert outcome.code == 0
    assert found == dict.fromkeys(
        ["Python", "Java", "PySpark", "pandas", "log", "checkpoint", "local state", "ports"], "ok"
    )
    assert not (tmp_path / "log").exists()
    assert not (tmp_path / "c").exists()


def test_what_is_not_given_is_said_and_is_no_failure(headrace, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "java", "21")))
    outcome = headrace("doctor")
    assert outcome.code == 0
    assert "warn  log: none given → give --log file:DIRECTORY" in outcome.out


@pytest.mark.parametrize("version, found", [("1.8.0_392", "1.8.0_392"), ("11.0.2", "11.0.2")])
def test_an_old_java_is_refused_with_the_command_that_installs_one(headrace, tmp_path, monkeypatch, version, found):
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "java", version)))
    outcome = headrace("doctor")
    assert outcome.code == 1
    assert f"fail  Java: {found}, {tmp_path}/java/bin/java: too old → {install_java()}" in outcome.out


def test_a_missing_java_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_java() == doctor.Check("Java", "fail", "none", install_java())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert doctor.check_java().found == f"none in JAVA_HOME, {tmp_path}"


@pytest.mark.parametrize(
    "system, release, command",
    [
        ("linux", DEBIAN_12, "apt-get install -y openjdk-17-jre-headless"),
        ("linux", 'ID=debian\nVERSION_ID="13"', "apt-get install -y openjdk-21-jre-headless"),
        ("linux", 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"', "apt-get install -y openjdk-17-jre-headless"),
        ("linux", 'ID="rocky"\nID_LIKE="rhel centos fedora"', "dnf install -y java-21-openjdk-headless"),
        ("linux", "ID=alpine", "apk add openjdk17-jre-headless"),
        ("darwin", None, "brew install openjdk@17"),
    ],
)
def test_java_is_installed_as_the_system_does_it(system, release, command):
    assert install_java(system, release) == command


def test_an_old_python_is_refused():
    assert doctor.check_python((3, 10, 4)).result == "fail"


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    assert (
        doctor.check_checkpoint(str(tmp_path / "file" / "c")).found == f"{tmp_path}/file/c: {tmp_path}/file is a file"
    )
    assert doctor.check_log(f"file:{tmp_path}/file").result == "fail"


@pytest.fixture
def checkpoint(tmp_path):
    cluster = started(THREE, storage=DiskStorage(tmp_path / "checkpoint"), limit=2)
    cluster.run()
    cluster.close()
    return tmp_path / "checkpoint"


def test_a_checkpoint_from_which_no_application_can_start_is_not_ok(checkpoint):
    whole = doctor.check_checkpoint(str(checkpoint))
    assert (whole.result, ", batch " in whole.found) == ("ok", True)
    last = read_ledger(DiskStorage(checkpoint), manifest_numbers(DiskStorage(checkpoint))[-1])
    files = [manifest_name(last.number), *(delta.blob.name for head in last.tasks.values() for delta in head.chain)]
    for name in {files[0], files[-1]}:
        file = checkpoint / name
        content = file.read_bytes()
        for damaged in (content[:-1], b"x" + content[1:], b""):
            file.chmod(0o600)
            file.write_bytes(damaged)
            found = doctor.check_checkpoint(str(checkpoint))
            assert (found.result, found.found[:35]) == ("fail", "an application cannot start from it")
        file.write_bytes(content)
    assert doctor.check_checkpoint(str(checkpoint)) == whole


def test_a_large_checkpoint_is_not_read_whole(checkpoint, monkeypatch):
    monkeypatch.setattr(doctor, "MAX_VERIFIED", 1)
    assert doctor.check_checkpoint(str(checkpoint)).advice == doctor.VERIFY


def test_an_object_store_that_cannot_be_read_is_not_ok():
    assert doctor.check_checkpoint("memory:///shop").result == "ok"
    assert doctor.check_checkpoint("no-such-store://shop").result == "fail"


def test_an_application_is_compared_with_its_checkpoint(headrace, checkpoint, tmp_path, monkeypatch):
    def mismatch():
        raise CheckpointMismatchError("the checkpoint belongs to another application, 'bank'")

    plan = SimpleNamespace(decisions=["counts: rename or remove it"], has_changes=True)
    app: Any = SimpleNamespace(application_id="shop", plan=mismatch, setup=SimpleNamespace(checkpoint=str(checkpoint)))
    assert "belongs to another application" in doctor.check_start(app).found
    app.plan = lambda: plan
    assert "1 to decide: counts: rename or remove it" in doctor.check_start(app).found
    plan.decisions = []
    assert doctor.check_start(app) == doctor.Check("start", "ok", "shop can start, with changes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "doctor_shop.py").write_text(
        "from headrace import Application, StreamsBuilder\n"
        "builder = StreamsBuilder()\n"
        "builder.stream('orders').to('copies')\n"
        "app = Application('shop', builder.build(), 'file:log', checkpoint='nothing')\n"
    )
    found = {
        check["what"]: check for check in json.loads(headrace("doctor", "--topology", "doctor_shop:app", "--json").out)
    }
    assert found["checkpoint"]["found"].startswith(str(tmp_path / "nothing"))
    assert found["start"]["found"] == "shop begins, without state"
    assert not (tmp_path / "nothing").exists()


def test_topics_that_do_not_suit_the_topology_are_no_start(headrace, address, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    with Admin(address) as admin:
        admin.create_topic("orders", partitions=2)
        admin.create_topic("payments", partitions=3)
    (tmp_path / "doctor_join.py").write_text(
        "from headrace import Application, JoinWindows, StreamsBuilder, serde\n"
        "builder = StreamsBuilder()\n"
        "orders, payments = (builder.stream(name, value=serde.STRING) for name in ('orders', 'payments'))\n"
        "orders.join(payments, lambda order, payment: order, windows=JoinWindows.of(10)).to('paid')\n"
        f"app = Application('shop', builder.build(), '{address}', checkpoint='{tmp_path}/nothing')\n"
    )
    outcome = headrace("doctor", "--topology", "doctor_join:app", "--json")
    assert outcome.out, outcome.err
    (start,) = [check for check in json.loads(outcome.out) if check["what"] == "start"]
    assert (start["result"], outcome.code) == ("fail", 1)
    assert "orders" in start["found"]
    assert "3" in start["found"]


def test_a_port_that_is_taken_is_named(headrace):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert doctor.check_port(taken).result == "fail"
    assert doctor.check_port(taken).result == "ok"


# -------------------------------------------------------------------------------------------------------- other users
def test_the_default_state_directory_is_the_one_that_slots_use(headrace, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "java", "21")))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = headrace("doctor").out
    assert f"ok    local state: {tmp_path}/headrace, " in found
    assert not (tmp_path / "headrace").exists()


def test_directories_that_an_application_would_refuse_are_named(tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for check in (
        doctor.check_state_dir(str(tmp_path / "open")),
        doctor.check_checkpoint(str(tmp_path / "open")),
        doctor.check_log(f"file:{tmp_path}/open"),
    ):
        assert check.result == "fail"
        assert f"{tmp_path}/open can be written by every user" in check.found
    (tmp_path / "theirs").mkdir(0o755)
    give_away(tmp_path / "theirs", monkeypatch)
    check = doctor.check_state_dir(str(tmp_path / "theirs"))
    assert check.result == "fail"
    assert "theirs belongs to" in check.found
    assert check.advice.startswith("run as that user, choose another directory")
