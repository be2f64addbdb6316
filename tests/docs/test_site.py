"""The documentation site builds without a warning, and its reference leaves nothing out."""

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

import headrace
import headrace.testing
from headrace.cli.config import settings
from tests.docs.test_code_blocks import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    return folder


def text_of(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_every_public_name_is_in_the_reference(site):
    anchors = set(re.findall(r'id="([\w.]+)"', (site / "reference/api.html").read_text(encoding="utf-8")))
    assert {f"headrace.{name}" for name in headrace.__all__} - anchors == set()
    testing = (site / "reference/testing.html").read_text(encoding="utf-8")
    assert {"headrace.testing.TopologyTestDriver", "headrace.testing.timeline"} <= set(
        re.findall(r'id="([\w.]+)"', testing)
    )


def test_every_setting_is_in_the_reference(site):
    text = text_of(site / "reference/settings.html")
    assert [row["setting"] for row in settings() if row["setting"] not in text] == []


def test_every_command_is_in_the_reference(site):
    shown = subprocess.run(
        [sys.executable, "-m", "headrace", "--help"], capture_output=True, text=True, check=True
    ).stdout
    commands = re.findall(r"^  ([a-z][a-z-]+)  ", shown, re.MULTILINE)
    assert len(commands) > 15
    text = text_of(site / "reference/commands.html")
    assert [command for command in commands if f"headrace {command}" not in text] == []


def test_every_metric_is_in_the_reference(site):
    source = (ROOT / "src/headrace/web/prometheus.py").read_text(encoding="utf-8")
    text = text_of(site / "reference/metrics.html")
    assert [name for name in set(re.findall(r'"(headrace_\w+)"', source)) if name not in text] == []


def test_timelines_are_pictures(site):
    page = (site / "operators/aggregates.html").read_text(encoding="utf-8")
    assert page.count('<figure class="timeline"') >= 9
