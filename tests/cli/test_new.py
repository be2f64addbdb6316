"""`headrace new` makes a project that runs, and the files in contrib/deploy give commands that exist."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.test_code_blocks import ROOT, parse

DEPLOY = ROOT / "contrib/deploy"


def test_a_project_has_its_files_and_a_second_one_does_not_overwrite_it(headrace, tmp_path):
    folder = tmp_path / "shop"
    made = headrace("new", "shop", "--directory", str(folder), "--json")
    assert {Path(row["file"]).name for row in json.loads(made.out)} == {
        "app.py", "app.properties", "test_app.py", "test_on_spark.py", "Makefile", "Dockerfile", "requirements.txt",
        ".gitignore",
    }  # fmt: skip
    again = headrace("new", "shop", "--directory", str(folder))
    assert "is not empty" in again.err


def test_a_name_that_is_no_application_id_is_rejected(headrace, tmp_path):
    assert "an id has letters" in headrace("new", "../shop").err


@pytest.mark.spark
def test_the_tests_of_a_new_project_pass(headrace, tmp_path):
    headrace("new", "shop", "--directory", str(tmp_path / "shop"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "shop", env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "2 passed" in tests.stdout, tests.stdout + tests.stderr


def test_the_commands_of_the_deployment_files_exist():
    unit = re.search(r"^ExecStart=\S+/headrace (.*)$", (DEPLOY / "headrace.service").read_text(), re.MULTILINE)
    assert unit is not None
    deployment, _ = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    image = re.search(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert image is not None
    for command in (shlex.split(unit[1]), container["command"][1:], json.loads(image[1])[1:]):
        parse(command)
