"""An S3-compatible server: `python -m tests.faults.s3` makes a bucket, says where it is, and waits.

One request is answered at a time, so that a conditional put is what it is at Amazon: of many one wins. Of the answers
to puts every nth gets lost, if the argument n is given, though the put was done.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from urllib.request import Request, urlopen

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def one_at_a_time(answer: Wsgi, lose: int) -> Wsgi:
    turn, puts = threading.Lock(), count(1)

    def run(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with turn:
            body = list(answer(environment, start))
            if lose and environment["REQUEST_METHOD"] == "PUT" and not next(puts) % lose:
                start("500 Internal Server Error", [("Content-Length", "0")], None)
                return []
            return body

    return run


def main(lose: int = 0) -> None:
    moto: Any = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, one_at_a_time(moto, lose), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.port}"
    with urlopen(Request(f"{address}/bucket", method="PUT")) as made:  # noqa: S310
        made.read()
    sys.stdout.write(json.dumps(address) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
