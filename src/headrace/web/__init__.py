"""The web server of an application: its stores, its metrics and its dashboard."""

from headrace.web.dashboard_json import ApplicationView
from headrace.web.ingest import HttpSource
from headrace.web.server import Server, web_application

__all__ = ["ApplicationView", "HttpSource", "Server", "web_application"]
