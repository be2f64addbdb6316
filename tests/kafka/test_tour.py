"""docs/tour.md leaves out no module that a record passes from Kafka to Kafka."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headrace import Admin, Application, Producer, StreamsBuilder, serde

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ROOT = Path(__file__).parents[2]
BATCHES = 4
# What only happens at the beginning or at the end of a process, and what wraps every public function.
ELSEWHERE = {"hints.py", "runtime/compile.py", "runtime/buffers.py", "runtime/lookup.py", "state/task_state.py"}


class Profiler:
    """Writes the modules that a thread enters to a file; it is installed at the first step of a batch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.driver = folder, os.getpid()

    def __call__(self, _moment: str) -> None:
        starts_the_application = os.getpid() == self.driver and threading.current_thread().name == "MainThread"
        if sys.getprofile() is not None or starts_the_application:
            return
        file, seen = self.folder / f"{os.getpid()}-{threading.get_native_id()}", set[str]()

        def profile(frame: FrameType, event: str, _argument: Any) -> None:
            path = frame.f_code.co_filename
            if event == "call" and "/src/headrace/" in path and path not in seen and frame.f_code.co_name != "close":
                seen.add(path)
                with file.open("a") as to:
                    to.write(path.rpartition("/src/headrace/")[2] + "\n")

        sys.setprofile(profile)


def test_the_tour_names_every_module_on_the_way_of_a_record(broker_address: str, room: str, tmp_path: Path):
    builder = StreamsBuilder()
    orders = builder.stream(f"{room}-orders", key=serde.STRING, value=serde.JSON)
    (
        orders.filter(lambda key, order: order["amount"] > 100)
        .group_by(lambda key, order: order["customer"], key=serde.STRING, value=serde.JSON)
        .count(store="large-orders")
        .to_stream()
        .to(f"{room}-counts", key=serde.STRING, value=serde.LONG)
    )
    modules = tmp_path / "modules"
    modules.mkdir()
    with Admin(broker_address) as admin:
        admin.create_topic(f"{room}-orders", partitions=2)
    app = Application(
        room, builder.build(), broker_address, checkpoint=str(tmp_path / "checkpoint"),
        state_dir=str(tmp_path / "state"), at_step=Profiler(modules),
    )  # fmt: skip
    with app, Producer(broker_address, key=serde.STRING, value=serde.JSON) as producer:
        for _ in range(BATCHES):
            for number in range(20):
                producer.send(f"{room}-orders", f"o{number}", {"amount": 100 + number, "customer": f"c{number % 3}"})
            producer.flush()
            app.drain(60_000)
    passed = {line for file in modules.iterdir() for line in file.read_text().split()}
    assert {"runtime/task.py", "log/kafka/producer.py", "spark/exchange.py"} <= passed, "the profiler saw too little"
    named = set(re.findall(r"`([\w/]+\.py)", (ROOT / "docs/tour.md").read_text()))
    assert sorted(passed - ELSEWHERE - named) == []
