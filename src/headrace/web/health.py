"""`/health` and `/ready`: what an orchestrator asks, without a token.

`/health` has the status 200 if the application runs and keeps up, `/ready` if the stores can be read; else 503. Neither
shows data. Both have threads of their own, so that slow reads of stores do not delay them.
"""

from __future__ import annotations

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import StoreNotReadyError
from headrace.web.dashboard_json import ApplicationView
from headrace.web.responses import json_response

THREADS = 2


def routes(view: ApplicationView) -> list[Route]:
    endpoints = HealthEndpoints(view)
    return [Route("/health", endpoints.health), Route("/ready", endpoints.ready)]


class HealthEndpoints:
    """The handlers of /health and /ready."""

    def __init__(self, view: ApplicationView) -> None:
        self._view, self._threads = view, anyio.CapacityLimiter(THREADS)

    async def health(self, request: Request) -> Response:
        return await anyio.to_thread.run_sync(self._check_health, limiter=self._threads)

    async def ready(self, request: Request) -> Response:
        try:
            batch = self._view.follower.snapshot.batch
        except StoreNotReadyError:
            return json_response({"ready": False}, 503)
        return json_response({"ready": True, "batch": batch})

    def _check_health(self) -> Response:
        try:
            status = self._view.status()
        except StoreNotReadyError:
            return json_response({"healthy": False, "verdict": "The application has not committed a batch yet."}, 503)
        is_healthy, verdict = status["healthy"], status["verdict"]
        if status["error"] is not None:  # whose message may quote a record
            verdict = f"{verdict.partition(': ')[0]}: the log of the application says why."
        return json_response({"healthy": is_healthy, "verdict": verdict}, 200 if is_healthy else 503)
