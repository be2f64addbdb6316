"""HTTPS: what the server speaks when it has a certificate."""

import socket
import ssl
import subprocess
import warnings
from contextlib import ExitStack, closing, suppress
from http.client import HTTPSConnection

import pytest

from headrace.errors import ConfigError
from headrace.query import Follower
from headrace.query.client import Client, RemoteError
from headrace.web import ApplicationView, Server
from headrace.web.connections import ConnectionLimits
from tests.query.programs import every_kind, finished
from tests.web.servers import FakeApplication, ask, served
from tests.web.test_connections import Stalled

pytestmark = pytest.mark.slow

TOKEN = "right horse battery staple"  # noqa: S105


@pytest.fixture(scope="module")
def cluster():
    return finished(limit=3)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A certificate of 127.0.0.1 that trusts itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=headrace", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.fixture
def server(cluster, pair):
    certificate, key = pair
    with served(cluster, FakeApplication(), token=TOKEN, certificate=certificate, private_key=key) as server:
        yield server


def trusting(pair):
    return ssl.create_default_context(cafile=str(pair[0]))


def test_a_client_that_trusts_the_certificate_reads_stores(server, pair):
    assert server.url.startswith("https://127.0.0.1:")
    with Client(server.url, token=TOKEN, certificates=pair[0]) as client:
        assert client.get("counts", "k1")
        assert len(list(client.range("counts", limit=2))) == 7


def test_a_client_that_does_not_trust_it_sends_nothing(server):
    with Client(server.url, token=TOKEN) as client, pytest.raises(RemoteError, match="certificate"):
        client.stores()


def test_the_cookie_is_for_encrypted_connections_only(server, pair):
    body = b'{"token": "right horse battery staple"}'
    answer = ask(server.url, "/session", method="POST", body=body, context=trusting(pair))
    assert answer.status == 200
    assert "Secure" in answer.headers["set-cookie"]


def test_plain_http_gets_no_answer(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection, suppress(ConnectionError):
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert not connection.recv(100).startswith(b"HTTP")


def test_old_versions_of_tls_are_refused(server, pair):
    context = trusting(pair)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(raw, server_hostname="127.0.0.1")


def test_connections_that_begin_no_handshake_keep_nobody_out(server, pair):
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        assert ask(server.url, "/health", context=trusting(pair)).status == 200
        assert len(server._listeners[0].table) <= ConnectionLimits().per_client


def test_a_handshake_that_does_not_end_in_time_is_not_waited_for(cluster, pair):
    limits = ConnectionLimits(receive_seconds=0.3)
    with (
        served(cluster, certificate=pair[0], private_key=pair[1], limits=limits) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection,
        suppress(ConnectionError),
    ):
        connection.sendall(b"\x16\x03\x01")
        assert connection.recv(100) == b""


def test_health_on_a_port_of_its_own_is_plain_http(cluster, pair):
    with served(cluster, FakeApplication(), certificate=pair[0], private_key=pair[1], health_port=0) as server:
        assert server.health_url.startswith("http://")
        assert ask(server.health_url, "/health").status == 200


def test_a_certificate_that_cannot_be_used_is_explained(cluster, pair, tmp_path):
    view = ApplicationView(follower=Follower(cluster.storage))
    certificate, key = pair
    nonsense, locked = tmp_path / "nonsense.pem", tmp_path / "locked.pem"
    nonsense.write_text("nonsense")
    command = ["openssl", "rsa", "-aes256", "-passout", "pass:hunter2", "-in", key, "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    for options in (
        {"certificate": tmp_path / "missing.pem"},
        {"certificate": nonsense, "private_key": key},
        {"certificate": certificate},
        {"certificate": certificate, "private_key": nonsense},
        {"certificate": certificate, "private_key": locked},
    ):
        with pytest.raises(ConfigError, match="cannot be used"):
            Server(view, **options)
    with pytest.raises(ConfigError, match="give both"):
        Server(view, private_key=key)


def test_health_is_answered_while_all_connections_are_busy(cluster, pair):
    application, context = Stalled(), trusting(pair)
    node = every_kind().describe().subtopologies[0].nodes[0].name
    options = {"certificate": pair[0], "private_key": pair[1], "limits": ConnectionLimits(connections=2, per_client=2)}
    with served(cluster, application, **options) as server, ExitStack() as stack:
        held = [stack.enter_context(closing(HTTPSConnection("127.0.0.1", server.port, context=context))) for _ in "12"]
        for connection in held:
            connection.request("GET", f"/api/nodes/{node}")
            assert application.waiting.acquire(timeout=10)
        for _ in range(20):  # that begin no handshake
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        try:
            assert ask(server.url, "/health", context=context).status == 200
            assert ask(server.url, "/stores", context=context).status == 503
        finally:
            application.over.set()
        assert [connection.getresponse().status for connection in held] == [200, 200]
