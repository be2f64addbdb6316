"""Stores, metrics and a dashboard over HTTP."""

from headrace.web.board import Board
from headrace.web.server import Server, web_application

__all__ = ["Board", "Server", "web_application"]
