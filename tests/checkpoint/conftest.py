"""Nothing that dies in these tests takes the memory of the operating system with it, so nothing waits for the disk."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
