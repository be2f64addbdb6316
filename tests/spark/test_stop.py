"""An application that a signal stops commits its last batch, ends with 0, and prints nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import serde
from headrace.log import open_log
from tests.cli.commands import records

pytestmark = pytest.mark.spark

PROGRAM = """
import itertools
import threading

from headrace import Application, Producer, StreamsBuilder, serde

builder = StreamsBuilder()
lines = builder.stream("lines", key=serde.STRING, value=serde.STRING)
words = lines.group_by(lambda key, word: word, key=serde.STRING, value=serde.STRING)
words.count(store="counts").to_stream().to("counts", value=serde.LONG)
app = Application("words", builder.build(), "file:log", checkpoint="checkpoint", state_dir="state")

def feed():
    with Producer("file:log", key=serde.STRING, value=serde.STRING) as producer:
        for number in itertools.count():
            producer.send("lines", str(number), f"word {number % 10}")
            if number % 10 == 9:
                producer.flush()
                if ended.wait(0.02):
                    return

ended = threading.Event()
feeding = threading.Thread(target=feed)
feeding.start()
try:
    app.run()
finally:
    ended.set()
    feeding.join()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_an_application_in_the_middle_of_batches_without_noise(number: int, tmp_path: Path):
    (tmp_path / "words.py").write_text(PROGRAM)
    log = open_log(f"file:{tmp_path}/log")
    log.create_topic("lines", 2)
    log.create_topic("counts", 2)
    log.close()
    process = subprocess.Popen(
        [sys.executable, "words.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        records(f"file:{tmp_path}/log", "counts", 30)  # several batches
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # Ctrl-C goes to every process of a terminal
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "")
    latest = {
        record.key: serde.LONG.decode(record.value or b"") for record in records(f"file:{tmp_path}/log", "counts", 30)
    }
    assert set(latest) == {f"word {word}".encode() for word in range(10)}
