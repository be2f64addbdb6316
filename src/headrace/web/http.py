"""Requests as httptools reads them, four times as fast as h11 does, with a limit on what comes before a body."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = 64 * 1024  # bytes of the first line and the headers, which httptools itself would take without end


class Http(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._head = 0  # bytes that have come of a request whose headers are not complete

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._head > HEAD and not self.transport.is_closing():
            self.send_400_response("The headers of a request have at most 64 KiB.")

    def on_headers_complete(self) -> None:
        self._head = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head = 0
        super().on_body(body)
