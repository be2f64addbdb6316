"""Runs an example on Spark and the embedded log, with its generator, and shows what comes out as it comes.

python -m examples.live stock_statistics [--seconds 20]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from headrace.app import Application
from headrace.log import Consumer, Producer, open_log

A_SECOND = 40  # events
ROWS = 15


def generate(example: Any, address: str, over: threading.Event) -> None:
    """Writes the example's events to the log, until it is over."""
    with Producer(address) as producer:
        for event in example.events(random.Random(7)):
            key, value = example.TOPICS[event.topic]
            producer.send(
                event.topic,
                event.key,
                event.value,
                key_serde=key,
                value_serde=value,
                timestamp=event.timestamp,
                headers=event.headers,
            )
            if over.wait(1 / A_SECOND):
                return


def picture(name: str, latest: dict[Any, Any], records: int) -> Table:
    table = Table("key", "latest value", title=f"{name}: {records:,} results, the last {ROWS} keys")
    for key, value in list(latest.items())[-ROWS:]:
        shown = f"{key.key} [{key.window.start // 1000 % 3600} s]" if hasattr(key, "window") else str(key)
        table.add_row(shown, str(value))
    return table


def watch(name: str, example: Any, address: str, end: float) -> Table:
    """Shows the latest value of every key that the example writes, until the end."""
    latest: dict[Any, Any] = {}
    records, (topic, (key, value)) = 0, next(iter(example.OUTPUTS.items()))
    with (
        Consumer(address, key_serde=key, value_serde=value, auto_offset_reset="earliest") as consumer,
        Live(picture(name, latest, 0), refresh_per_second=5, transient=True) as live,
    ):
        consumer.subscribe(topic)
        while time.monotonic() < end:
            for record in consumer.poll(200):
                latest.pop(record.key, None)
                latest[record.key] = record.value
                records += 1
            live.update(picture(name, latest, records))
    return picture(name, latest, records)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run an example live.")
    parser.add_argument("example", nargs="?", default="stock_statistics")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop by itself after so long")
    options = parser.parse_args()
    example, console = import_module(f"examples.{options.example}"), Console()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        address = f"file:{folder}/log"
        log = open_log(address)
        for topic in (*example.TOPICS, *example.OUTPUTS):
            log.create_topic(topic, 2)
        app = Application(
            example.APPLICATION,
            example.build(),
            address,
            checkpoint=f"{folder}/checkpoint",
            state_dir=f"{folder}/state",
        )
        console.print(f"[bold]{options.example}[/] on Spark, with the embedded log in {Path(folder)}. Ctrl-C ends it.")
        over = threading.Event()
        with console.status("Starting Spark …"):
            app.start()
        generator = threading.Thread(target=generate, args=(example, address, over))
        generator.start()
        try:
            last = watch(options.example, example, address, time.monotonic() + options.seconds)
            console.print(last)
        except KeyboardInterrupt:
            console.print("Stopping …")
        finally:
            over.set()
            generator.join()
            app.stop()
            log.close()
    console.print(
        "Next: read examples/stock_statistics.py, change it, and run `make demo` again; docs/tour.md says how it works."
    )


if __name__ == "__main__":
    main()
