import pytest

from headrace.log.open import open_log
from tests.cli.commands import Here


@pytest.fixture
def headrace(capsys, monkeypatch):
    for name in ("HEADRACE_LOG", "HEADRACE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return Here(capsys)


@pytest.fixture
def address(tmp_path):
    """An embedded log without topics."""
    address = f"file:{tmp_path}/log"
    open_log(address).close()
    return address
