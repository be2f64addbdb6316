"""A soak: `python -m tests.soak`, which `make test-soak` runs. Words are counted at a steady rate on a Kafka broker.

    python -m tests.soak [--seconds 600] [--rate 5000] [--fault-every 30] [--chart docs/images/soak.svg]

After the warm-up everything that processes use, the checkpoint and the latency must be level: the median of the last
third of the time is compared with that of the first third. Every word that was sent must be counted once. With
`--fault-every`, processes and the broker are killed or stopped that often. The chart is written in any case.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from headrace import Admin
from headrace.testing import KafkaBroker
from tests.soak.application import IN, OUT, PARTITIONS
from tests.soak.chart import Panel, draw_chart
from tests.soak.faults import FaultInjector, summarize
from tests.soak.levels import Sample, compare_phases, judge
from tests.soak.processes import (
    ROOT,
    ApplicationProcess,
    CpuMeter,
    count_files,
    count_open,
    members,
    memory_of,
    size_of,
)
from tests.soak.traffic import CountReader, Feeder

WARM_UP = 120.0  # seconds, or a third of a shorter run
START = 120.0  # seconds until the application must have written something
DRAIN = 60.0  # seconds until everything must be counted
POINTS = 900  # of a line of the chart, which is not wider in pixels
say = Console(highlight=False, soft_wrap=True).print


# ------------------------------------------------------------------------------------------------------------- the soak
def run_soak(folder: Path, seconds: float, rate: int, fault_every: float | None, seed: int) -> list[Sample]:
    faults: FaultInjector | None = None
    with KafkaBroker(folder / "broker") as broker:
        with Admin(broker.address) as admin:
            for topic in (IN, OUT):
                admin.create_topic(topic, partitions=PARTITIONS)
        app = ApplicationProcess(folder, broker.address)
        try:
            reader, feeder = CountReader(broker.bootstrap), Feeder(broker.bootstrap, rate)
            _await(lambda: reader.counted > 0 and len(app.slots()) == 2, START, app, "no word was counted")
            if fault_every is not None:
                faults = FaultInjector(app, broker, feeder, reader, fault_every, seed)
            app.time_by_phase()
            samples = _sample(app, reader, seconds, faults)
            phases = app.time_by_phase()
            if faults is not None:
                faults.stop()
                faults.check()
            feeder.stop()
            _await(lambda: reader.counted >= feeder.sent, DRAIN, app, "words are missing")
            app.stop()
            reader.stop()
        finally:
            app.kill()
    if reader.counted != feeder.sent or reader.repeated:
        raise SystemExit(
            f"{reader.counted:,} words were counted, {feeder.sent:,} sent, and {reader.repeated:,} counts came again"
        )
    say(f"{feeder.sent:,} words in {seconds:,.0f} s, each counted once")
    if faults is None:
        say("ms of a batch, " + "; ".join(compare_phases(phases)))
    else:
        say(f"{len(faults.faults)} faults, one every {fault_every:g} s (--seed {seed})")
        for line in summarize(faults.faults):
            say(f"  {line}")
    return samples


def _await(reached: Callable[[], bool], patience: float, app: ApplicationProcess, otherwise: str) -> None:
    end = time.monotonic() + patience
    while not reached():
        app.check()
        if time.monotonic() > end:
            raise SystemExit(f"{otherwise} within {patience:g} seconds")
        time.sleep(0.2)


def _sample(app: ApplicationProcess, reader: CountReader, seconds: float, faults: FaultInjector | None) -> list[Sample]:
    samples: list[Sample] = []
    cpu = CpuMeter(app.process.pid)
    began = time.monotonic()
    reader.take_ages()
    while (now := time.monotonic()) < began + seconds:
        time.sleep(max(0.0, began + len(samples) + 1 - now))
        app.check()
        if faults is not None:
            faults.check()
        ages = reader.take_ages()
        p50, p99 = (ages[int(share * len(ages))] if ages else None for share in (0.5, 0.99))
        processes, slots = members(app.process.pid), app.slots()
        samples.append(
            Sample(
                time=time.monotonic() - began,
                driver=memory_of(app.process.pid),
                jvm=memory_of(app.jvm()),
                slots=sum(map(memory_of, slots)),
                descriptors=count_open(processes, "fd"),
                threads=count_open(processes, "task"),
                files=count_files(app.folder / "tmp"),
                checkpoint=size_of(app.folder / "checkpoint"),
                p50=p50,
                p99=p99,
            )
        )
        if len(samples) % 60 == 0:
            done = "" if faults is None else f", {len(faults.faults)} faults"
            used, stolen = cpu.read()
            said = f"{len(samples) // 60} min: {reader.counted:,} words{done}, p50 {p50} ms, p99 {p99} ms"
            say(f"{said}, application {used:.0f} % of a core, stolen by the host {stolen:.0f} %")
    return samples


def draw(samples: Sequence[Sample], warm_up: float, options: argparse.Namespace) -> str:
    samples = samples[:: 1 + len(samples) // POINTS]

    def line(name: str) -> list[float | None]:
        return [getattr(sample, name) for sample in samples]

    panels = [
        Panel("Memory", "MB", {"driver": line("driver"), "its JVM": line("jvm"), "slots": line("slots")}),
        Panel("Checkpoint", "MB", {"files": line("checkpoint")}),
        Panel(
            "Open files, threads, temporary files",
            "",
            {"open files": line("descriptors"), "threads": line("threads"), "temporary files": line("files")},
        ),
        Panel("Latency from log to log", "ms", {"p50": line("p50"), "p99": line("p99")}),
    ]
    faults = "" if options.fault_every is None else f", a fault every {options.fault_every:g} s"
    title = f"{options.rate:,} records a second, counted by word, two slots, Kafka{faults}; shaded: warm-up"
    return draw_chart(title, [sample.time for sample in samples], warm_up, panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--fault-every", type=float, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1, help="decides the order of the faults")
    parser.add_argument("--chart", type=Path, default=ROOT / "docs" / "images" / "soak.svg")
    options = parser.parse_args()
    # Broker and application are in sessions of their own, and have to be ended in any case.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    warm_up = min(WARM_UP, options.seconds / 3)
    with tempfile.TemporaryDirectory(prefix="headrace-soak-", ignore_cleanup_errors=True) as folder:
        samples = run_soak(Path(folder), options.seconds, options.rate, options.fault_every, options.seed)
    options.chart.parent.mkdir(parents=True, exist_ok=True)
    options.chart.write_text(draw(samples, warm_up, options), encoding="utf-8")
    told = judge(samples, warm_up)
    say("\n".join([*told, f"chart: {options.chart}"]))
    if any(line.startswith("NOT") for line in told):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
