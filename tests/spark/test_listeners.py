"""Where the JVM of an application on one machine listens: nobody on another machine can connect."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest

from headrace.spark.session import session

pytestmark = pytest.mark.spark
LISTEN = "0A"  # a state of a socket


def listening_addresses(process: int) -> set[str]:
    """The addresses at which a process listens, as Linux tells them."""
    links = [file.readlink() for file in Path(f"/proc/{process}/fd").iterdir() if file.is_symlink()]
    own = {str(link).removeprefix("socket:[").removesuffix("]") for link in links if str(link).startswith("socket:[")}
    found = set[str]()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == LISTEN and rest[5] in own:
                found.add(decode_address(local.partition(":")[0]))
    return found


def decode_address(text: str) -> str:
    """
    >>> decode_address("0100007F"), decode_address("0000000000000000FFFF00000100007F")
    ('127.0.0.1', '127.0.0.1')
    """
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def test_the_jvm_of_a_session_on_one_machine_listens_on_the_loopback_interface_only():
    context: Any = session().sparkContext
    assert context.parallelize([1, 2], 2).map(lambda number: number + 1).collect() == [2, 3]
    found = listening_addresses(context._jvm.java.lang.ProcessHandle.current().pid())
    assert found
    assert all(ipaddress.ip_address(address).is_loopback for address in found), found
