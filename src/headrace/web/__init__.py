"""Stores, metrics and a dashboard over HTTP."""

from headrace.web.application_view import ApplicationView
from headrace.web.server import Server, web_application

__all__ = ["ApplicationView", "Server", "web_application"]
