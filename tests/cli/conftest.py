import pytest

from tests.cli.commands import Here


@pytest.fixture
def headrace(capsys, monkeypatch):
    for name in ("HEADRACE_LOG", "HEADRACE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return Here(capsys)


@pytest.fixture
def address(tmp_path):
    return f"file:{tmp_path}/log"
