"""`headrace changelogs`, called wrongly; what it does is in tests/kafka/test_java_state.py."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from headrace import Application, StreamsBuilder


@pytest.fixture(autouse=True)
def shop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    module = ModuleType("shop")
    topology = builder.build()
    app = Application("shop", topology, f"file:{tmp_path}/log", checkpoint=f"{tmp_path}/checkpoint")
    module.__dict__.update(topology=topology, app=app)
    monkeypatch.setitem(sys.modules, "shop", module)


def test_there_are_no_java_applications_on_the_embedded_log(headrace):
    code, _, err = headrace("changelogs", "shop:app")
    assert code == 1
    assert "is no Kafka log" in err


def test_a_topology_needs_a_name(headrace):
    code, _, err = headrace("changelogs", "shop:topology")
    assert code == 2
    assert "give --application-id (and --checkpoint), too" in err


def test_an_application_has_one(headrace):
    code, _, err = headrace("changelogs", "shop:app", "--application-id", "another")
    assert code == 2
    assert "leave --application-id out" in err
