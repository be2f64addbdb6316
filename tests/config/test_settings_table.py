"""The table of settings is whole: every setting has a meaning, and the module that it names reads it."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

import headrace
from headrace.cli.config import settings
from headrace.config import Config
from headrace.config.settings import OF_TOOLS, OTHER_NAMES, WITHOUT_EFFECT

SOURCE = Path(headrace.__file__).parent
ROWS = [row for row in fields(Config) if row.name != "extra"]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_module_that_the_table_names_reads_the_setting(row):
    module = SOURCE / (row.metadata["read_by"].replace(".", "/") + ".py")
    read = {
        node.attr
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert row.name in read, f"nothing in {module} reads {row.name}: give it an effect, or move it to WITHOUT_EFFECT"


def test_every_setting_has_a_meaning_and_a_default_that_it_accepts():
    for row in ROWS:
        assert len(row.metadata["meaning"]) > 10
        assert row.default is None or row.metadata["parse"](row.default) == row.default


def test_no_setting_is_in_two_tables():
    names = {row.name.replace("_", ".") for row in ROWS}
    assert not names & WITHOUT_EFFECT.keys()
    assert not names & OTHER_NAMES.keys()
    assert set(OTHER_NAMES.values()) <= {row.name for row in ROWS}


def test_the_command_lists_every_setting_with_its_environment_variable():
    rows = settings()
    assert [row["setting"] for row in rows] == [row.name.replace("_", ".") for row in ROWS]
    assert rows[1]["environment"] == "HEADRACE_AUTO_CREATE_TOPICS_ENABLE"
    assert not OF_TOOLS & {row["environment"] for row in rows}


def test_every_variable_that_the_repository_uses_is_known():
    root = SOURCE.parent.parent
    files = [
        root / "Makefile",
        *(path for part in ("src", "tests", "benchmarks") for path in (root / part).rglob("*.py")),
    ]
    used = {
        word
        for file in files
        if file.exists()
        for word in re.findall(r"""["'$({]+(HEADRACE_[A-Z_]+)""", file.read_text())
    }
    mine = {row["environment"] for row in settings()}
    tested = {
        "HEADRACE_SASL_PASSWORD",
        "HEADRACE_SASL_USERNAME",
        "HEADRACE_COMIT_INTERVAL_MS",
        "HEADRACE_NOTHING_AT_ALL",
    }
    assert not {word for word in used if not word.endswith("_")} - OF_TOOLS - mine - tested


# The modules that run with one trigger alone; all others run with both.
OF_ONE_TRIGGER = {
    "real-time": {
        f"spark/{name}.py" for name in ("real_time", "batch_loop", "slot", "slot_pool", "placement", "slot_registry")
    },
    "micro-batch": {"spark/micro_batch.py", "spark/data_source.py", "spark/slot_process.py"},
}


@pytest.mark.slow
def test_a_setting_that_only_one_trigger_reads_names_it():
    readers: dict[str, set[str]] = {row.name: set() for row in ROWS}
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in readers:
                readers[node.attr].add(str(file.relative_to(SOURCE)))
    for row in ROWS:
        only = next((trigger for trigger, some in OF_ONE_TRIGGER.items() if readers[row.name] <= some), None)
        assert row.metadata["trigger"] == only, f"{row.name} is read by {readers[row.name]}"
