"""The web server of an application: its stores, its metrics and its dashboard.

`ApplicationView` needs no web server, and commands show it as text. The other names need the extra `web`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.extras import needs_extra
from headrace.web.dashboard_json import ApplicationView

if TYPE_CHECKING:
    from headrace.web.ingest import HttpSource
    from headrace.web.server import Server, web_application

__all__ = ["ApplicationView", "HttpSource", "Server", "web_application"]

_MODULES = {"HttpSource": "ingest", "Server": "server", "web_application": "server"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_extra("web"):
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
