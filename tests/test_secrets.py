"""Passwords, tokens and the data of records are in no message, log line or output that people share."""

import json
import logging
import pickle
import re
import subprocess
import sys

import pytest

from headrace import StreamsBuilder, serde
from headrace.app import Application
from headrace.checkpoint.storage import open_storage
from headrace.config import Config
from headrace.errors import ConfigError, StorageError, StreamsError
from headrace.secrets import mask_secrets
from headrace.testing import TopologyTestDriver
from tests.cli.commands import Here

SECRET = "hunter2"  # noqa: S105
PLACES = [
    f"s3://key:{SECRET}@bucket/shop",
    f"s3://bucket/shop?access_key_id=me&secret_access_key={SECRET}&region=eu",
    f"az://container/shop?account_key={SECRET}",
    f"postgresql://me:p@{SECRET}@host/shop",
    f"postgresql://me:p/{SECRET}@host/shop",
    f"shop of https://host/x?X-Amz-Signature={SECRET}&y=1",
    f"shop: Authorization: Bearer eyJhbGciOi.{SECRET}",
    f"shop: -----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
]


@pytest.fixture
def headrace(capsys, monkeypatch):
    monkeypatch.delenv("HEADRACE_LOG", raising=False)
    return Here(capsys)


# ---------------------------------------------------------------------------------------------------------- passwords
@pytest.mark.parametrize("place", PLACES)
def test_an_error_masks_its_message_wherever_it_is_shown(place):
    error = StorageError(f"{place} does not answer")
    assert SECRET not in str(error)
    assert "shop" in str(error)
    assert SECRET not in str(pickle.loads(pickle.dumps(error)))


def test_the_representation_of_a_configuration_has_no_password():
    config = Config.of(
        {
            **dict.fromkeys(("sasl.password", "ssl.key.password", "producer.sasl.jaas.config", "ssl.key.pem"), SECRET),
            "consumer.ssl.keystore.key": SECRET,
            "num.partitions": 3,
        },
        bootstrap_servers=f"kafka://me:{SECRET}@host:9092",
    )
    assert SECRET not in repr(config)
    assert "num.partitions=3" in repr(config)
    assert "commit.interval.ms" not in repr(config)  # the default
    assert config.client_settings["sasl.password"] == SECRET


def test_passwords_are_no_arguments_of_a_command(headrace):
    outcome = headrace("run", "shop:build", "--set", f"sasl.password={SECRET}")
    assert outcome.code == 2
    assert "HEADRACE_SASL_PASSWORD" in outcome.err
    assert SECRET not in outcome.err + outcome.out


def test_the_representation_of_an_application_s_setup_has_no_password():
    builder = StreamsBuilder()
    builder.stream("lines").to("copies")
    app = Application(
        "copy", builder.build(), f"kafka://me:{SECRET}@host:9092", checkpoint=PLACES[0],
        config={"sasl.password": SECRET},
    )  # fmt: skip
    assert SECRET not in repr(app.setup)


def test_a_value_that_cannot_be_used_is_not_quoted_with_its_password():
    with pytest.raises(ConfigError) as failed:
        Config.of({"state.dir": "", "num.partitions": f"password={SECRET}"})
    assert SECRET not in str(failed.value)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("as_json", [True, False])
def test_doctor_does_not_print_the_credentials_of_a_checkpoint(headrace, place, as_json):
    outcome = headrace("doctor", "--checkpoint", place, *(["--json"] if as_json else []))
    assert "shop" in outcome.out
    assert SECRET not in outcome.out + outcome.err


@pytest.mark.parametrize("command", ["status", "dashboard", "replica", "drops"])
def test_commands_do_not_print_the_credentials_of_a_checkpoint(headrace, command):
    outcome = headrace(command, "--checkpoint", f"nowhere://me:{SECRET}@bucket/shop")
    assert outcome.code == 1
    assert outcome.err
    assert SECRET not in outcome.out + outcome.err


def test_a_storage_that_cannot_be_opened_does_not_quote_its_credentials():
    with pytest.raises(StreamsError) as failed:
        open_storage(f"nowhere://me:{SECRET}@bucket/shop")
    assert SECRET not in str(failed.value)


def test_texts_without_secrets_stay_as_they_are():
    for text in ("orders/0 at offset 5", "https://host/path", "a token is needed", "the key of batch 7: none"):
        assert mask_secrets(text) == text


# ------------------------------------------------------------------------------------------------------------ records
def failing(**config):
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serde.STRING, value=serde.JSON)
    orders.map_values(lambda order: order["card"] + 1, name="charge").to("charged", value=serde.JSON)
    return TopologyTestDriver(builder.build(), config={"processing.exception.handler": "continue", **config})


def raise_quote(value):
    raise ValueError(f"cannot charge {value}")


def quoting(**config):
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serde.STRING, value=serde.STRING)
    orders.map_values(raise_quote, name="charge").to("charged", value=serde.STRING)
    return TopologyTestDriver(builder.build(), config={"processing.exception.handler": "continue", **config})


@pytest.mark.parametrize("allowed", [False, True])
def test_a_record_that_is_left_out_is_named_in_the_log_and_not_quoted(caplog, allowed):
    caplog.set_level(logging.DEBUG)
    with quoting(**{"log.record.values": allowed}) as driver:
        driver.input_topic("orders", key=serde.STRING, value=serde.STRING).pipe("4111-1111", timestamp=0)
    above = [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]
    lines = [line for line in above if "orders/0 at offset 0" in line]  # others may be of a thread of an earlier test
    assert len(lines) == 1
    for part in ("charge", "ValueError"):
        assert part in lines[0]
    assert ("4111-1111" in lines[0]) == allowed
    assert any("4111-1111" in record.getMessage() for record in caplog.records)


def test_a_record_that_cannot_be_decoded_is_not_quoted(caplog):
    with failing(**{"deserialization.exception.handler": "continue"}) as driver:
        driver.input_topic("orders", key=serde.STRING, value=serde.BYTES).pipe(b"{4111-1111", timestamp=0)
    assert len([line for line in caplog.messages if "orders/0 at offset 0" in line]) == 1
    assert "4111-1111" not in caplog.text


def test_an_error_has_a_summary_without_the_record():
    with (
        quoting(**{"processing.exception.handler": "fail"}) as driver,
        pytest.raises(StreamsError, match="cannot charge 4111") as failed,
    ):
        driver.input_topic("orders", key=serde.STRING, value=serde.STRING).pipe("4111", timestamp=0)
    assert failed.value.summary == "charge: processing error on orders/0 at offset 0: ValueError"
    assert pickle.loads(pickle.dumps(failed.value)).summary == failed.value.summary


def test_health_does_not_quote_a_record():
    from tests.query.programs import finished  # noqa: PLC0415
    from tests.web.servers import FakeApplication, ask, served  # noqa: PLC0415

    application = FakeApplication(state="ERROR", error="charge failed on orders/0: cannot charge 4111-1111")
    with served(finished(limit=3), application) as server:
        answer = ask(server.url, "/health")
        assert answer.status == 503
        assert "4111" not in json.dumps(answer.json)
        assert "Stopped by an error" in answer.json["verdict"]


@pytest.mark.slow
def test_log_lines_have_a_time_and_a_level_in_a_program_that_has_set_up_no_log():
    program = (
        "import logging, headrace\n"
        "from headrace.secrets import log_own_lines\n"
        "{setup}\n"
        "log_own_lines(); log_own_lines()\n"
        "logging.getLogger('headrace.app').warning('sasl.password=abc is wrong')\n"
    )
    expected = {
        "": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING sasl.password=\*\*\* is wrong\n",
        "logging.basicConfig(format='own %(message)s')": r"own sasl.password=abc is wrong\n",
    }
    for setup, line in expected.items():
        command = [sys.executable, "-c", program.format(setup=setup)]
        written = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert re.fullmatch(line, written), written
