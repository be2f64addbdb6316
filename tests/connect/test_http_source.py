"""Records by HTTP: 202 only when they are in the log; tokens, limits, and requests that are sent again."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import httpx
import pytest

from headrace import serde
from headrace.connect.source import SourceRunner
from headrace.log.embedded.file_log import FileLog
from headrace.testing.source_check import read_pairs
from headrace.topology.connectors import SourceSpec
from headrace.web import HttpSource

TOKEN = {"Authorization": "Bearer secret"}


class Crash(BaseException):
    pass


@pytest.fixture
def log(tmp_path):
    with closing(FileLog(tmp_path)) as log:
        yield log


def start(log, at_step=lambda moment: None, **options):
    """Opens the source, which listens then but reads nothing yet."""
    source = HttpSource("clicks", token=TOKEN["Authorization"][7:], key_of="user", **options)
    spec = SourceSpec(source=source, topic="clicks", key=source.key, value=source.value)
    runner = SourceRunner("shop-clicks", spec, log, read_timeout=0.1, at_step=at_step)
    runner.advance()
    runner.advance()
    reader: Any = runner._reader
    return runner, spec, reader.url + "/records"


def run_forever(runner):
    while True:
        runner.advance()


def post(url, body, **headers):
    """Sends a request in a thread; the response is appended to the list."""
    responses = []

    def send():
        with httpx.Client() as client:
            responses.append(client.post(url, content=body, headers={**TOKEN, **headers}, timeout=60))

    thread = threading.Thread(target=send)
    thread.start()
    return thread, responses


def test_one_and_many_are_answered_when_the_log_has_them(log):
    runner, spec, url = start(log)
    one, one_response = post(url, b'{"user": "ada", "page": 1}')
    many, many_responses = post(url, b'{"user": "bob"}\n{"user": "eve"}\n', **{"Content-Type": "application/x-ndjson"})
    while runner.report().lag != 2 and not read_pairs(log, spec):
        assert not one_response, "202 came before the record was in the log"
        runner.advance()
    while one.is_alive() or many.is_alive():
        runner.advance()
    assert (one_response[0].status_code, one_response[0].json()) == (202, {"records": 1})
    assert (many_responses[0].status_code, many_responses[0].json()) == (202, {"records": 2})
    assert sorted(key for key, _ in read_pairs(log, spec)) == ["ada", "bob", "eve"]
    runner.close()


def test_a_request_that_is_sent_again_after_a_crash_is_written_once(log):
    def crash(moment):
        if moment == "after source delivery":
            raise Crash

    runner, spec, url = start(log, crash)
    sending, responses = post(url, b'{"user": "ada"}', **{"Idempotency-Key": "1"})
    with pytest.raises(Crash):
        run_forever(runner)
    runner.close()
    sending.join()
    assert (responses[0].status_code, responses[0].headers["retry-after"]) == (503, "1")
    runner, spec, url = start(log)
    for _ in range(2):
        sending, responses = post(url, b'{"user": "ada"}', **{"Idempotency-Key": "1"})
        while sending.is_alive():
            runner.advance()
        assert responses[0].status_code == 202
    assert read_pairs(log, spec) == [("ada", {"user": "ada"})]
    runner.close()


def test_tokens_and_limits(log):
    runner, spec, url = start(log, max_bytes=100, waiting=1, timeout=0.1)
    with httpx.Client() as client:
        assert client.post(url, content=b"{}").status_code == 401
        assert client.post(url, content=b"{}", headers={"Authorization": "Bearer guess"}).status_code == 401
        assert client.post(url, content=b"{" + b" " * 100, headers=TOKEN).status_code == 413
        for body in (b"{", b"", b'{"page": 1}'):
            assert client.post(url, content=body, headers=TOKEN).status_code == 400, body
        for _ in range(2):  # the first waits for the log in vain, the second finds no room
            answer = client.post(url, content=b'{"user": 1}', headers=TOKEN)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert read_pairs(log, spec) == []
    runner.close()


def test_a_record_that_cannot_be_written_is_rejected_and_stops_nobody_else(log):
    """One client's bad key or timestamp must not stop the source for all."""
    runner, spec, url = start(log, key=serde.STRING, timestamp_of="at")
    with httpx.Client() as client:
        for body in (
            b'{"user": 7, "at": 5}',
            b'{"user": {"a": 1}, "at": 5}',
            *(b'{"user": "eve", "at": %s}' % at for at in (b'"now"', b"-1", b"1e99", b"true", b"99999999999999999999")),
        ):
            answer = client.post(url, content=body, headers=TOKEN)
            assert (answer.status_code, answer.json()["error"]) == (400, "Malformed"), body
    sending, responses = post(url, b'{"user": "ada", "at": 5}')
    while sending.is_alive():
        runner.advance()
    assert responses[0].status_code == 202
    assert read_pairs(log, spec) == [("ada", {"user": "ada", "at": 5})]
    runner.close()
