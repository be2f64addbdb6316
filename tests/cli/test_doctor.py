"""`headrace doctor`: what is missing, and what to do."""

import json
import socket
import sys

import pytest

from headrace.cli import doctor
from headrace.spark.session import install_java
from tests.other_users import give_away

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
