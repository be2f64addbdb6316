"""Hosts on one machine: network namespaces on a bridge, between which the network can be cut. Needs root.

    with Hosts(2) as hosts:                 # in a namespace of its own: run the program with `unshare --net`
        hosts.run_python(folder)            # a Python executable for Spark, whose processes are on these hosts in turn
        hosts.separate()                    # the hosts do not reach each other, but this process reaches all
        hosts.cut_off(1)                    # nothing reaches the host, nor this process
        hosts.heal()

Packets that would cross a cut are dropped without a word, as in a real network: no connection is reset.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

HERE = "10.77.0.1"  # the address of the driver

# Starts Python on the host that has the fewest of the processes that were started so.
PYTHON = """#!/bin/bash
exec 9> {folder}/lock
flock 9
fewest=1000
for host in {hosts}; do
    living=0
    mkdir -p {folder}/$host
    for process in $(ls {folder}/$host); do
        if [ -d /proc/$process ]; then living=$((living + 1)); else rm {folder}/$host/$process; fi
    done
    if [ $living -lt $fewest ]; then fewest=$living; chosen=$host; fi
done
touch {folder}/$chosen/$$
flock -u 9
exec 9>&-
exec nsenter --net --target $chosen {python} "$@"
"""


def has_namespaces() -> bool:
    """Whether this process may create network namespaces and bridges."""
    command = "ip link add headrace type bridge && ip link add left type veth peer name right"
    try:
        return (
            subprocess.run(["unshare", "--net", "sh", "-c", command], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


class Hosts:
    """Network namespaces, each held by a process; their addresses are 10.77.0.11, 10.77.0.12 and so on."""

    def __init__(self, count: int) -> None:
        _ip("link set lo up")
        _ip("link add hosts type bridge")
        _ip(f"address add {HERE}/24 dev hosts")
        _ip("link set hosts up")
        self._holders = [self._add(number) for number in range(count)]

    def _add(self, number: int) -> subprocess.Popen[bytes]:
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready && exec sleep infinity"], stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        _ip(f"link add port{number} type veth peer name inner{number}")
        _ip(f"link set inner{number} netns {holder.pid}")
        _ip(f"link set port{number} master hosts")
        _ip(f"link set port{number} up")
        for command in (
            "link set lo up",
            f"address add {address(number)}/24 dev inner{number}",
            f"link set inner{number} up",
        ):
            _run("nsenter", "--net", "--target", str(holder.pid), "ip", *command.split())
        return holder

    def run_python(self, folder: Path) -> Path:
        """Writes an executable that starts Python on one of the hosts."""
        folder.mkdir()
        script = folder / "python"
        holders = " ".join(str(holder.pid) for holder in self._holders)
        script.write_text(PYTHON.format(folder=folder, hosts=holders, python=sys.executable))
        script.chmod(0o755)
        return script

    def separate(self) -> None:
        for number in range(len(self._holders)):
            _ip(f"link set port{number} type bridge_slave isolated on")

    def cut_off(self, number: int) -> None:
        _ip(f"link set port{number} nomaster")

    def heal(self) -> None:
        for number in range(len(self._holders)):
            _ip(f"link set port{number} master hosts")
            _ip(f"link set port{number} type bridge_slave isolated off")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()


def address(number: int) -> str:
    return f"10.77.0.{11 + number}"


def _ip(command: str) -> None:
    _run("ip", *command.split())


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
