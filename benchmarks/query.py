"""How fast are questions? Point queries a second over HTTP and their p99, alone and while records flow.

    python benchmarks/query.py [--keys 100000] [--seconds 5] [--connections 4] [--json]

The server has a process of its own, and so has the client, which does as little as it can: it sends the next request on
a connection when it has the answer to the last one. A route that does nothing, in the same run and process, is the
yardstick for the time of an answer. While records flow, a host in one process commits batches as fast as it can, and
the server follows them. The server's own CPU time for an answer does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import socket
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace import StreamsBuilder, serde
from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.fingerprint import compute_fingerprint
from headrace.checkpoint.receipt import Receipt, complete_receipt, new_attempt
from headrace.checkpoint.storage import DiskStorage
from headrace.config import Config
from headrace.log.embedded.file_log import FileLog
from headrace.model.ids import TaskId
from headrace.query import Follower
from headrace.runtime.rows import Inputs, batch_rows
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import MemoryEngine
from headrace.topology.subtopologies import plan
from headrace.web import ApplicationView, Server

CONFIG = Config.of({"application.id": "bench"}, default_key_serde=serde.STRING)
GOAL, GOAL_RATIO = 2_000, 20


class Figures(NamedTuple):
    name: str
    per_second: float
    p50: float  # ms
    p99: float
    cpu: float  # µs of the server for one answer


# ------------------------------------------------------------------------------------------------------ the application
def counting() -> Any:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serde.STRING, value=serde.STRING)
    stream.group_by_key(key=serde.STRING, value=serde.STRING).count(store="counts")
    return builder.build()


class Host:
    """One task, batch after batch, with a checkpoint on disk."""

    def __init__(self, folder: Path) -> None:
        graph = counting().graph()
        planned = plan(graph)
        self.log = FileLog(str(folder / "log"), clean_every=None)
        self.log.create_topic("in", 1)
        self.storage = DiskStorage(folder / "checkpoint")
        fingerprint = compute_fingerprint(graph, planned, CONFIG, tasks={0: 1}, partitions={})
        self.coordinator = Coordinator.open(self.storage, self.log, "bench", fingerprint)
        self.task = Task(
            TaskId(0, 0), graph, planned.stages[0].nodes, MemoryEngine(), TaskEnvironment(CONFIG, {}), clock=0
        )

    def run(self, keys: list[str]) -> None:
        number = self.coordinator.number
        base = self.coordinator.ledger.head(TaskId(0, 0)).version
        receipt = Receipt(task=TaskId(0, 0), level=0, number=number, attempt=new_attempt(), base=base)
        rows = [("in", 0, i, key.encode(), b"x", i, (), (i, 0, i)) for i, key in enumerate(keys)]
        result = self.task.run(Inputs(received=batch_rows(rows)), clock=number, version=receipt.version)
        receipt = complete_receipt(self.storage, receipt, result.delta, [], {}, lambda topic: None, inline=1 << 18)
        self.coordinator.commit(number, int(time.time() * 1000), [receipt])


# ------------------------------------------------------------------------------------------------------------ processes
async def nothing(request: Request) -> Response:
    return Response(b"{}")


def serve(place: str, ports: Any) -> None:
    with Server(ApplicationView(follower=Follower.open(place)), follow=100, insecure=True) as server:
        empty = Starlette(routes=[Route("/", nothing)])
        plain = uvicorn.Server(uvicorn.Config(empty, log_level="warning", access_log=False, lifespan="off"))
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        ports.put((server.port, listening.getsockname()[1]))
        plain.run(sockets=[listening])


def ask(port: int, path: str, args: argparse.Namespace, answers: Any) -> None:
    """Asks on some connections in turn; what is measured is from a request to its answer, wherever the client is."""
    chance, took = random.Random(1), list[float]()
    requests = [
        f"GET {path.format(number)} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode() for number in range(args.keys)
    ]
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(args.connections)]
    sent = [0.0] * len(connections)
    end = time.perf_counter() + args.seconds
    for place, connection in enumerate(connections):
        sent[place] = time.perf_counter()
        connection.sendall(requests[chance.randrange(args.keys)])
    while time.perf_counter() < end:
        for place, connection in enumerate(connections):
            receive(connection)
            now = time.perf_counter()
            took.append(now - sent[place])
            sent[place] = now
            connection.sendall(requests[chance.randrange(args.keys)])
    answers.put(took)


def receive(connection: socket.socket) -> None:
    """One answer; nothing of it is looked at but whether it is whole."""
    found = connection.recv(65536)
    if not found.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"no answer: {found[:200]!r}")
    head, _, body = found.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)


def cpu_of(process: int) -> float:
    """Seconds that a process has worked."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(name: str, server: Any, at: tuple[int, str], args: argparse.Namespace, meanwhile: Any = None) -> Figures:
    answers = multiprocessing.Queue()
    client = multiprocessing.Process(target=ask, args=(*at, args, answers))
    before = cpu_of(server.pid)
    client.start()
    if meanwhile is not None:
        meanwhile(args.seconds)
    took = answers.get(timeout=60 + args.seconds)
    used = cpu_of(server.pid) - before
    client.join()
    cuts = quantiles(took, n=100)
    return Figures(name, len(took) / args.seconds, 1000 * cuts[49], 1000 * cuts[98], 1e6 * used / len(took))


def flowing(host: Host, keys: int, batch: int) -> Any:
    """Commits batches of records for a while, and remembers how many it could."""
    chance = random.Random(2)

    def run(seconds: float) -> None:
        end, done = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            host.run([f"key-{chance.randrange(keys)}" for _ in range(batch)])
            done += batch
        run.speed = done / seconds  # type: ignore[attr-defined]

    return run


def measured(args: argparse.Namespace) -> tuple[list[Figures], dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder))
        host.run([f"key-{number}" for number in range(args.keys)])
        flow = flowing(host, args.keys, 10_000)
        flow(args.seconds)
        alone = flow.speed
        ports = multiprocessing.Queue()
        server = multiprocessing.Process(target=serve, args=(str(Path(folder) / "checkpoint"), ports), daemon=True)
        server.start()
        port, empty = ports.get(timeout=60)
        path = "/stores/counts/keys/key-{}"
        figures = [
            measure("an empty route", server, (empty, "/?{}"), args),
            measure("a key, alone", server, (port, path), args),
            measure("a key, while records flow", server, (port, path), args, flow),
        ]
        server.kill()
        host.coordinator.close()
        return figures, {"records/s without questions": alone, "records/s with questions": flow.speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures, speeds = measured(args)
    if args.json:
        print(json.dumps({"figures": [figure._asdict() for figure in figures], **speeds}))
        return
    for figure in figures:
        times = f"p50 {figure.p50:6.2f} ms   p99 {figure.p99:6.2f} ms   server {figure.cpu:6.0f} µs"
        print(f"{figure.name:28} {figure.per_second:9,.0f}/s   {times}")
    for name, speed in speeds.items():
        print(f"{name:28} {speed:9,.0f}")
    empty, alone, _ = figures
    fast, steady = alone.per_second >= GOAL, alone.p99 <= GOAL_RATIO * empty.p50
    print(f"goal of {GOAL:,}/s: {'reached' if fast else 'missed'}")
    print(f"goal of a p99 of {GOAL_RATIO} times the p50 of an empty route: {'reached' if steady else 'missed'}")


if __name__ == "__main__":
    main()
