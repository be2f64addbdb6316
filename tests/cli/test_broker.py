"""`headrace broker`: it goes on when the command has ended."""

import json

import pytest

from tests.cli.commands import finished

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_a_broker_goes_on_in_the_background_and_keeps_its_topics_in_a_directory(tmp_path):
    place = ["--directory", tmp_path / "broker"]
    first = finished("broker", "start", *place)
    address = first.out.strip()
    assert address.startswith("kafka://127.0.0.1:"), first.err
    try:
        assert "headrace broker stop" in first.err
        again = json.loads(finished("broker", "start", "--json", *place).out)
        assert (again["address"], again["bootstrap"]) == (address, address.removeprefix("kafka://"))
        assert finished("topics", "create", "--log", address, "--topic", "lines").code == 0
        other = finished("broker", "start", "--port", "1", *place)
        assert other.code == 1
        assert "runs in" in other.err
        assert finished("broker", "stop", *place).code == 0
        address = finished("broker", "start", *place).out.strip()
        assert finished("topics", "list", "--log", address).out == "lines\n"
    finally:
        ended = finished("broker", "stop", *place)
    assert ended.err == f"The broker at {address} has ended.\n"
    gone = finished("broker", "stop", *place)
    assert (gone.code, gone.err.startswith("headrace: no broker runs in")) == (1, True)
