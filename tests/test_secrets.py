"""Passwords, tokens and the data of records are in no message, log line or output that people share."""

import json
import logging
import pickle
import re
import signal
import subprocess
import sys
import traceback
from typing import Any

import pytest

from headrace import StreamsBuilder, serde
from headrace.app import Application
from headrace.checkpoint.sink_delivery import SinkReport
from headrace.checkpoint.storage import open_storage
from headrace.cli.main import command as find_command
from headrace.cli.options import ADDRESSES, SETTINGS, check_no_credentials
from headrace.config import Config
from headrace.errors import ConfigError, ProcessingError, RecordsRejectedError, StorageError, StreamsError, summarize
from headrace.query.status import SourceReport
from headrace.secrets import mask_secrets
from headrace.spark.job import decode_failure, encode_failure
from headrace.testing import TopologyTestDriver
from tests.cli.commands import Here, started
from tests.cli.commands import finished as run_command
from tests.connect.servers import S3Server
from tests.query.programs import finished
from tests.web.servers import FakeApplication, ask, served

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


def list_commands(command, path=()):
    """Every command, with the words that call it."""
    for name, found in command.commands.items():
        if hasattr(found, "commands"):
            yield from list_commands(found, (*path, name))
        else:
            yield (*path, name), found


ARGUMENTS = [
    ("--checkpoint", f"s3://key:{SECRET}@bucket/shop", "AWS_SECRET_ACCESS_KEY"),
    ("--checkpoint", f"s3://bucket/shop?secret_access_key={SECRET}", "AWS_SECRET_ACCESS_KEY"),
    ("--from-checkpoint", f"az://container/shop?account_key={SECRET}", "AWS_SECRET_ACCESS_KEY"),
    ("--log", f"kafka://me:{SECRET}@host:9092", "HEADRACE_SASL_PASSWORD"),
    ("--bootstrap-server", f"kafka://me:{SECRET}@host:9092", "HEADRACE_SASL_PASSWORD"),
    ("--from", f"kafka://me:{SECRET}@host:9092", "HEADRACE_SASL_PASSWORD"),
    ("--set", f"sasl.password={SECRET}", "HEADRACE_SASL_PASSWORD"),
    ("--set", f"schema.registry.url=https://me:{SECRET}@host", "HEADRACE_SCHEMA_REGISTRY_URL"),
    ("--property", f"schema.registry.url=https://me:{SECRET}@host", "HEADRACE_SCHEMA_REGISTRY_URL"),
    ("--property", f"schema.registry.basic.auth.user.info=me:{SECRET}", "HEADRACE_SCHEMA_REGISTRY_URL"),
]


@pytest.mark.parametrize("flag, value, variable", ARGUMENTS)
def test_passwords_are_no_arguments_of_a_command(headrace, flag, value, variable):
    callers = [(words, found) for words, found in list_commands(find_command()) if takes(found, flag)]
    assert callers
    for words, _ in callers:
        for arguments in ([flag, value], [f"{flag}={value}"]):
            outcome = headrace(*words, *arguments)
            assert outcome.code == 2, words
            assert variable in outcome.err
            assert SECRET not in outcome.err + outcome.out


def takes(found, flag):
    return any(flag in option.opts for option in found.params)


def test_every_option_with_an_address_is_checked_for_passwords():
    options = {
        flag: option for _, found in list_commands(find_command()) for option in found.params for flag in option.opts
    }
    named = {flag for flag, option in options.items() if re.search(r"checkpoint|server\b|log\b", option.name)}
    assert named <= ADDRESSES.keys()
    assert {*ADDRESSES, *SETTINGS} <= options.keys()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--checkpoint", "s3://bucket/shop?region=eu&endpoint=http://host:9000"],
        ["--log", "kafka://one:9092,two:9092"],
        ["--property", 'value.schema={"properties": {"token": {"type": "string"}}}'],
        ["--property", "key.separator=:"],
        ["--set", "num.partitions=3"],
        ["--sql", "select 'password=1'"],
    ],
)
def test_arguments_without_passwords_are_accepted(arguments):
    check_no_credentials(arguments)


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
def test_doctor_does_not_print_the_credentials_of_a_checkpoint(headrace, monkeypatch, place, as_json):
    monkeypatch.setenv("HEADRACE_CHECKPOINT", place)
    outcome = headrace("doctor", *(["--json"] if as_json else []))
    assert "shop" in outcome.out
    assert SECRET not in outcome.out + outcome.err


@pytest.mark.parametrize("command", ["status", "dashboard", "replica", "drops"])
def test_commands_do_not_print_the_credentials_of_a_checkpoint(headrace, monkeypatch, command):
    monkeypatch.setenv("HEADRACE_CHECKPOINT", f"nowhere://me:{SECRET}@bucket/shop")
    outcome = headrace(command)
    assert outcome.code == 1
    assert outcome.err
    assert SECRET not in outcome.out + outcome.err


@pytest.fixture(scope="module")
def stored():
    """The address of a checkpoint in an object store, with credentials."""
    with S3Server() as server:
        place = server.place.replace("=secret", f"={SECRET}").replace("s3://", f"s3://me:{SECRET}@")
        assert place.count(SECRET) == 2
        cluster = finished(limit=3, storage=open_storage(place))
        yield place
        cluster.close()


@pytest.mark.slow
@pytest.mark.parametrize("words", ["status", "status --json", "top --once", "drops", "state ls", "doctor"])
def test_commands_that_open_a_checkpoint_do_not_print_its_credentials(headrace, monkeypatch, stored, words):
    monkeypatch.setenv("HEADRACE_CHECKPOINT", stored)
    outcome = headrace(*words.split())
    assert outcome.out
    assert SECRET not in outcome.out + outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dashboard", "replica"])
def test_servers_of_a_checkpoint_do_not_show_its_credentials(stored, name):
    with started(name, "--port", 0, "--no-token", environment={"HEADRACE_CHECKPOINT": stored}) as process:
        line = process.stderr.readline()
        assert "s3://***@bucket/" in line
        url = line.split()[0]
        for path in ("/health", "/ready", "/api/status", "/api/durability", "/api/settings", "/stores", "/metrics"):
            answer = ask(url, path)
            assert answer.body
            assert SECRET not in answer.body.decode()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert SECRET not in line + out + err


def test_a_storage_that_cannot_be_opened_does_not_quote_its_credentials():
    with pytest.raises(StreamsError) as failed:
        open_storage(f"nowhere://me:{SECRET}@bucket/shop")
    assert SECRET not in str(failed.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ValueError", "RuntimeError"])
def test_the_traceback_of_a_failure_has_no_password(tmp_path, kind):
    source = f"def connect(dsn):\n    raise {kind}(dsn)\n\nconnect('postgresql://me:' + 'hunter' + '2@host/shop')\n"
    (tmp_path / "shop.py").write_text(source)
    outcome = run_command("--debug", "topology", "shop:app", cwd=tmp_path)
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert f"{kind}: postgresql://***@host/shop" in outcome.err
    assert SECRET not in outcome.err + outcome.out


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


def raise_again(failure, record, error):
    raise ValueError(f"no idea what to do with {record.value}")


@pytest.mark.parametrize("handler", [raise_again, lambda failure, record, error: record.value])
def test_an_exception_handler_that_fails_or_answers_nonsense_does_not_quote_the_record_in_the_log(handler):
    with (
        quoting(**{"processing.exception.handler": handler}) as driver,
        pytest.raises(StreamsError, match="4111") as failed,
    ):
        driver.input_topic("orders", key=serde.STRING, value=serde.STRING).pipe("4111", timestamp=0)
    assert "4111" not in summarize(failed.value)
    assert "the exception handler" in summarize(failed.value)
    assert "orders/0 at offset 0" in summarize(failed.value)


def test_a_timestamp_extractor_that_returns_the_value_does_not_quote_it_in_the_log():
    builder = StreamsBuilder()
    extract: Any = lambda record, partition_time: record.value
    builder.stream("orders", value=serde.STRING, timestamp=extract).to("copies")
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(StreamsError, match="4111") as failed:
        driver.input_topic("orders", key=serde.STRING, value=serde.STRING).pipe("4111", timestamp=0)
    assert "4111" not in summarize(failed.value)


class UnpicklableError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("a socket cannot be pickled")


def charge(error):
    """The error that a task raises for an exception of a function."""
    failed = ProcessingError(f"charge failed on orders/0: {error}")
    failed.summary = "charge: processing error on orders/0"
    failed.__cause__ = error
    return failed


@pytest.mark.parametrize("kind", [ValueError, UnpicklableError])
def test_an_error_of_a_slot_keeps_its_summary_and_its_notes_have_no_password(kind):
    failed = charge(kind(f"cannot charge 4111 at postgresql://me:{SECRET}@host"))
    received = decode_failure(encode_failure(failed))
    assert "4111" in str(received)
    assert summarize(received) == "charge: processing error on orders/0"
    shown = "".join(traceback.format_exception(received)) if kind is UnpicklableError else "".join(received.__notes__)
    assert "4111" in shown
    assert SECRET not in shown


def test_the_trace_of_an_error_without_a_summary_that_cannot_be_pickled_is_not_in_the_log():
    failed = StreamsError("the store is closed")
    failed.__cause__ = UnpicklableError("the key is 4111")
    assert summarize(decode_failure(encode_failure(failed))) == "the store is closed"


def test_rejected_records_are_counted_in_the_log_and_not_quoted():
    error = RecordsRejectedError("4111 is rejected", [("4111", "rejected")])
    error.add_note("the batch is committed")
    received = pickle.loads(pickle.dumps(error))
    assert str(received) == "4111 is rejected"
    assert (received.records, received.__notes__) == (error.records, error.__notes__)
    for some in (error, received):
        assert summarize(some) == "the target rejects 1 record"
        assert summarize(some, with_values=True) == "4111 is rejected"


@pytest.mark.parametrize(
    "reported",
    [
        {"state": "ERROR", "error": "charge failed on orders/0: cannot charge 4111-1111"},
        {"sinks": [SinkReport("lake", "atomic", 4, 2, error="RecordsRejectedError: 4111-1111", failures=1)]},
        {"sources": [SourceReport("cards", "cards", "RETRYING", 7, 120, "4111-1111 is no number", 2)]},
    ],
    ids=["a function", "a sink", "a source"],
)
def test_health_does_not_quote_a_record(reported):
    application = FakeApplication(**reported)
    with served(finished(limit=3), application) as server:
        answer = ask(server.url, "/health")
        assert answer.status == 503
        assert "4111" not in json.dumps(answer.json)
        assert answer.json["verdict"].startswith(("Stopped by an error", "Waiting for"))


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
