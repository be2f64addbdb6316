"""Takes the pictures of the dashboard in docs/images: `python tools/dashboard_screenshots.py`.

It runs an example on Spark and the embedded log with events of this moment, opens its dashboard in Chromium, waits
until the charts have something to show, and takes the pictures: wide and light, wide and dark, a phone.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from playwright.sync_api import Browser, sync_playwright

from headrace import Application
from headrace.cli.demo import load_example
from headrace.clients import Producer
from headrace.log import open_log
from headrace.query.follower import Follower
from headrace.web import ApplicationView, Server

IMAGES = Path(__file__).parent.parent / "docs" / "images"
EVENTS_PER_SECOND = 150


class Picture(NamedTuple):
    """A picture of the page on a screen, from the top to the end of the charts."""

    name: str
    width: int
    height: int
    scheme: Literal["light", "dark"]


PICTURES = [
    Picture("dashboard.png", 1400, 1000, "light"),
    Picture("dashboard-dark.png", 1400, 1000, "dark"),
    Picture("dashboard-phone.png", 390, 844, "light"),
]


@contextmanager
def running(example: Any) -> Iterator[str]:
    """Run an example, and yield the link of its dashboard."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        log, checkpoint = f"file:{folder}/log", f"{folder}/checkpoint"
        with closing(open_log(log)) as opened:
            for topic in {*example.TOPICS, *example.OUTPUTS}:
                opened.create_topic(topic, 2)
        app = Application(example.APPLICATION, example.build(), log, checkpoint=checkpoint, state_dir=f"{folder}/state")
        stop = threading.Event()
        producer = threading.Thread(target=produce, args=(example, log, stop))
        with app:
            producer.start()
            follower = Follower.open(checkpoint, app.setup.graph, app.setup.config)
            view = ApplicationView(follower=follower, application=app, topology=app.topology.describe())
            try:
                with Server(view) as server:
                    yield server.link
            finally:
                stop.set()
                producer.join()


def produce(example: Any, log: str, stop: threading.Event) -> None:
    with Producer(log) as producer:
        for event in example.events(random.Random(7)):  # noqa: S311 - test data
            key, value = example.TOPICS[event.topic]
            producer.send(event.topic, event.key, event.value, key_serde=key, value_serde=value, headers=event.headers)
            if stop.wait(random.expovariate(EVENTS_PER_SECOND)):
                return


def take(browser: Browser, link: str, picture: Picture, folder: Path) -> None:
    size = {"width": picture.width, "height": picture.height}
    with browser.new_context(viewport=size, color_scheme=picture.scheme) as context:  # pyright: ignore[reportArgumentType]
        page = context.new_page()
        page.goto(link)
        page.wait_for_selector("#connection.live", timeout=60_000)
        page.click("#ranges button:has-text('1 min')")
        page.wait_for_selector("#graph .rate:has-text('/s')")
        end = page.evaluate("scrollY + document.getElementById('charts').getBoundingClientRect().bottom + 14")
        clip = {"x": 0, "y": 0, "width": picture.width, "height": end}
        page.screenshot(path=folder / picture.name, full_page=True, clip=clip)  # pyright: ignore[reportArgumentType]
    sys.stdout.write(f"{folder / picture.name}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--example", default="value_at_risk", help="the example to run")
    parser.add_argument("--seconds", type=int, default=75, help="how long it runs before the pictures are taken")
    parser.add_argument("--folder", type=Path, default=IMAGES, help="where the pictures go")
    given = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    given.folder.mkdir(parents=True, exist_ok=True)
    with running(load_example(given.example)) as link, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        threading.Event().wait(given.seconds)
        for picture in PICTURES:
            take(browser, link, picture, given.folder)


if __name__ == "__main__":
    main()
