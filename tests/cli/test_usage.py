"""What holds for all commands: exit codes, sentences instead of tracebacks, help."""

import json
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from headrace.cli.demo import list_examples
from headrace.cli.main import app

COMMANDS = [
    "run", "demo", "topology", "topics", "produce", "consume", "groups", "reset", "doctor", "config",
    "query", "state", "checkpoint", "status", "top", "pause", "resume", "snapshot", "dashboard",
    "replica", "broker",
]  # fmt: skip


def test_the_version_is_the_packages():
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"headrace {version('headrace')}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(command):
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    assert shown.output.startswith("Usage: ")


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["tpoics"], "No such command 'tpoics'. Did you mean 'topics'?"),
        (["topics", "create"], "Missing option '--topic'."),
        (["topics", "list"], "which log? Give --log file:DIRECTORY, or set HEADRACE_LOG"),
        (["consume", "--log", "file:x", "--max-messages", "many"], "Invalid value for '--max-messages'"),
        (["run", "shop"], "write MODULE:ATTRIBUTE, such as shop.orders:app, not 'shop'"),
        (["topology", "a:b", "--format", "png"], "Invalid value for '--format'"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(headrace, arguments, sentence):
    outcome = headrace(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"headrace: {sentence}" in outcome.err


def test_a_failure_ends_with_1_and_one_sentence(headrace, address):
    outcome = headrace("topics", "describe", "--log", address, "--topic", "none")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == (
        "headrace: there is no topic 'none' (there are: none): `headrace topics list` shows them, "
        "`topics create` makes one\n"
    )


def test_a_log_that_is_none_is_named(headrace):
    outcome = headrace("topics", "list", "--log", "files:x")
    assert outcome.code == 1
    assert "'files:x' is not the address of a log" in outcome.err


@pytest.mark.parametrize(
    "command", ["topics list", "groups list", "consume --topic a", "produce --topic a", "dead-letters list --topic a"]
)
def test_client_settings_come_from_a_file_and_a_misspelt_one_is_an_error(headrace, address, tmp_path, command):
    (tmp_path / "client.properties").write_text("securty.protocol=SSL\n")
    outcome = headrace(*command.split(), "--log", address, "--command-config", tmp_path / "client.properties")
    assert outcome.code == 1
    assert outcome.err == "headrace: there is no setting 'securty.protocol': did you mean 'security.protocol'?\n"


def test_the_file_of_client_settings_may_name_the_log(headrace, tmp_path):
    (tmp_path / "client.properties").write_text(f"bootstrap.servers=file:{tmp_path}/log\n")
    assert headrace("topics", "create", "--topic", "a", "--command-config", tmp_path / "client.properties").code == 0
    assert headrace("topics", "list", "--log", f"file:{tmp_path}/log").out == "a\n"


def test_a_traceback_is_there_for_who_wants_it(headrace, address, monkeypatch):
    arguments = ("topics", "describe", "--log", address, "--topic", "none")
    assert "Traceback" in headrace("--debug", *arguments).err
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    assert "Traceback" in headrace(*arguments).err


def test_the_settings_are_listed_with_defaults_and_meanings(headrace):
    rows = json.loads(headrace("config", "--json").out)
    assert {row["setting"]: row["default"] for row in rows}["processing.guarantee"] == "exactly_once"
    assert [row["setting"] for row in rows if not row["meaning"]] == []


def test_the_examples_are_listed(headrace):
    rows = json.loads(headrace("demo", "--list", "--json").out)
    assert [row["name"] for row in rows] == list(list_examples())
    assert {"stock_statistics", "word_count", "clickstream"} <= set(list_examples())
    assert all(row["about"] for row in rows)
    assert headrace("demo", "--list").out.splitlines()[1].startswith("account ")


def test_an_example_that_is_none_is_refused(headrace):
    outcome = headrace("demo", "stocks")
    assert outcome.code == 1
    assert "there is no example 'stocks' (there are: account," in outcome.err


@pytest.mark.parametrize(
    "command", ["topics list", "topics describe", "groups list", "consume --topic a", "dead-letters list --topic a"]
)
def test_a_log_that_is_not_there_is_an_error_and_is_not_created(headrace, tmp_path, command):
    outcome = headrace(*command.split(), "--log", f"file:{tmp_path}/lgo")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(
        f"headrace: there is no log at file:{tmp_path}/lgo. `headrace topics create` begins one"
    )
    assert not (tmp_path / "lgo").exists()
