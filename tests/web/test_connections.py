"""Clients that connect and do nothing, or do it slowly, keep nobody else out."""

import http.client
import socket
import threading
import time
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest

from headrace.errors import ConfigError
from headrace.query import Follower
from headrace.web import ApplicationView, Server
from headrace.web.connections import ConnectionLimits, ConnectionTable, group_address
from headrace.web.server import HEALTH_LIMITS
from tests.query.programs import every_kind, finished, started
from tests.web.servers import FakeApplication, ask, served

pytestmark = pytest.mark.slow

SOON = 5.0  # seconds: half of what a request may take by default
SHORT = ConnectionLimits(receive_seconds=0.3, send_seconds=0.3)


@pytest.fixture(scope="module")
def cluster():
    return finished(limit=3)


def connect(server, raw=b"", stack=None, client="127.0.0.1"):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10, source_address=(client, 0))
    connection.sendall(raw)
    return connection if stack is None else stack.enter_context(connection)


def read_all(connection):
    """What the server sends until it closes the connection, which it must do."""
    received = b""
    with suppress(ConnectionError):
        while piece := connection.recv(65_536):
            received += piece
    return received


# -------------------------------------------------------------------------------------------------- many connections
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"GET /stores HTTP/1.1\r\nhost: local",
        b"POST /session HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{",
    ],
    ids=["idle", "in the headers", "in the body"],
)
def test_300_idle_connections_do_not_block_others(cluster, raw):
    with served(cluster, FakeApplication()) as server, ExitStack() as stack:
        for _ in range(300):
            connect(server, raw, stack)
        begun = time.monotonic()
        assert ask(server.url, "/health").status == 200
        assert ask(server.url, "/ready").status == 200
        assert ask(server.url, "/stores").status == 200
        assert time.monotonic() - begun < SOON
        assert len(server._listeners[0].table) <= ConnectionLimits().per_client


class Stalled(FakeApplication):
    """An application whose samples take as long as the test says."""

    def __init__(self):
        super().__init__()
        self.over, self.waiting = threading.Event(), threading.Semaphore(0)

    def samples(self, node):
        self.waiting.release()
        self.over.wait(30)
        return []


@pytest.fixture
def stalled(cluster):
    """A server whose connections and threads are all busy."""
    application = Stalled()
    limits = ConnectionLimits(connections=50, per_client=44)
    with served(cluster, application, limits=limits, health_port=0) as server, ExitStack() as stack:
        node = every_kind().describe().subtopologies[0].nodes[0].name
        request = f"GET /api/nodes/{node} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        held = [connect(server, request, stack) for _ in range(44)]
        for _ in range(40):  # as many threads as handlers have
            assert application.waiting.acquire(timeout=10)
        try:
            yield server, held
        finally:
            application.over.set()
            for connection in held:
                assert connection.recv(12) == b"HTTP/1.1 200"


def test_requests_that_are_answered_are_not_cut_off_for_new_ones(stalled):
    server, held = stalled
    answer = ask(server.url, "/stores")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert len(server._listeners[0].table) == len(held)


def test_health_has_a_listener_that_other_requests_cannot_fill(stalled):
    server, _ = stalled
    assert ask(server.health_url, "/health").status == 200
    assert ask(server.health_url, "/ready").json["ready"] is True


def await_that(is_so):
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


ONE_CLIENT, MANY_CLIENTS = ["127.0.0.1"], [f"127.0.0.{number}" for number in range(2, 6)]


@pytest.mark.parametrize("clients", [ONE_CLIENT, MANY_CLIENTS], ids=["one client", "many clients"])
def test_health_is_answered_while_clients_hold_all_connections(cluster, clients):
    application, limits = Stalled(), ConnectionLimits()
    with served(cluster, application) as server, ExitStack() as stack:
        node = every_kind().describe().subtopologies[0].nodes[0].name
        request = f"GET /api/nodes/{node} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        held = [connect(server, request, stack, client) for client in clients for _ in range(limits.per_client)]
        assert len(held) in {limits.per_client, limits.connections}
        table = server._listeners[0].table
        await_that(lambda: sum(each.is_busy for each in list(table._clients)) == len(held))
        try:
            for raw in (b"", b"GET /health HTTP/1.1\r\nhost: local"):  # who else waits is not in the way
                for client in clients:
                    for _ in range(HEALTH_LIMITS.per_client):
                        connect(server, raw, stack, client)
            assert ask(server.url, "/health").status == 200
            answer = ask(server.url, "/ready", connection="keep-alive")
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            answer = ask(server.url, "/stores")
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert len(table) == len(held)
        finally:
            application.over.set()
        for connection in held:
            assert connection.recv(12) == b"HTTP/1.1 200"
    assert table.reserve is not None
    assert len(table.reserve) == 0


def count_unread(table):
    """The connections whose clients do not read."""
    return sum(getattr(each, "_departure", None) is not None for each in list(table._clients))


def test_health_is_answered_while_a_client_without_the_token_reads_nothing(cluster):
    request = b"GET /static/vendor/uPlot.iife.min.js HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with served(cluster, FakeApplication(), token="secret") as server, ExitStack() as stack:  # noqa: S106
        for _ in range(ConnectionLimits().per_client):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(10)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(200 * request)  # 10 MB of responses, more than the system keeps
        table = server._listeners[0].table
        await_that(lambda: count_unread(table) == ConnectionLimits().per_client)
        assert ask(server.url, "/stores").status == 503
        assert ask(server.url, "/health").status == 200


def test_the_listener_of_the_health_has_nothing_else_and_limits_of_its_own(cluster):
    with served(cluster, FakeApplication(), token="secret", health_port=0) as server, ExitStack() as stack:  # noqa: S106
        for path in ("/", "/stores", "/metrics", "/api/status", "/session"):
            assert ask(server.health_url, path).status == 404
        at = urlsplit(server.health_url)
        for _ in range(80):
            stack.enter_context(socket.create_connection(("127.0.0.1", at.port or 0)))
        assert ask(server.health_url, "/health").status == 200
        assert set(ask(server.health_url, "/health").json) == {"healthy", "verdict"}


def test_a_port_of_the_health_that_is_taken_is_explained_and_frees_the_other(cluster):
    with served(cluster) as other:
        view = ApplicationView(follower=Follower(cluster.storage))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with pytest.raises(ConfigError, match="Choose another port"):
            Server(view, port=port, health_port=other.port)
        with Server(view, port=port):
            pass


def test_it_is_ready_when_stores_can_be_read():
    cluster = started(limit=1)
    for name in cluster.storage.names():
        cluster.storage.delete(name)
    with Server(ApplicationView(follower=Follower(cluster.storage)), health_port=0) as server:
        for url in (server.url, server.health_url):
            answer = ask(url, "/ready")
            assert (answer.status, answer.json) == (503, {"ready": False})


# ------------------------------------------------------------------------------------------------------- slow clients
@pytest.mark.parametrize(
    "raw, status",
    [
        (b"", b"408"),
        (b"\r\n", b"408"),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-header: ", b"408"),
        (b"POST /session HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n{", b""),
    ],
    ids=["nothing", "an empty line", "headers", "a body"],
)
def test_a_request_that_does_not_arrive_in_time_is_not_waited_for(cluster, raw, status):
    with served(cluster, limits=SHORT) as server, connect(server, raw) as connection:
        assert read_all(connection)[9:12] == status


def test_bytes_that_drip_do_not_extend_the_time(cluster):
    with served(cluster, limits=SHORT) as server, connect(server, b"GET / HTTP/1.1\r\nx: ") as connection:
        begun = time.monotonic()
        connection.settimeout(0.05)
        while time.monotonic() < begun + SOON:
            try:
                connection.sendall(b"x")
                if not connection.recv(100):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert time.monotonic() - begun < SOON


def test_the_next_request_of_a_connection_must_arrive_in_time_too(cluster):
    with served(cluster, limits=SHORT) as server, connect(server) as connection:
        connection.sendall(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\nGET /ready HT")
        received = read_all(connection)
        assert received.startswith(b"HTTP/1.1 200 OK")
        assert b"HTTP/1.1 408 Request Timeout" in received


def test_a_client_that_does_not_read_its_response_is_cut_off(cluster):
    many = finished(rows=[(f"key {n}", "v" * 20_000) for n in range(1500)], limit=2000)
    with served(many, limits=SHORT) as server:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with connection:
            connection.settimeout(10)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(b"GET /stores/plain/range?format=ndjson HTTP/1.1\r\nhost: localhost\r\n\r\n")
            table, end = server._listeners[0].table, time.monotonic() + SOON
            assert connection.recv(12) == b"HTTP/1.1 200"
            while len(table) and time.monotonic() < end:
                ask(server.url, "/ready", connection="close")
            assert len(table) == 0


def test_a_request_that_takes_long_to_answer_is_not_cut_off(cluster):
    application = Stalled()
    with served(cluster, application, limits=SHORT) as server:
        node = every_kind().describe().subtopologies[0].nodes[0].name
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", f"/api/nodes/{node}")
        assert application.waiting.acquire(timeout=10)
        application.over.wait(3 * SHORT.receive_seconds)
        application.over.set()
        assert connection.getresponse().status == 200
        connection.close()


# ---------------------------------------------------------------------------------------------------------- the table
class FakeConnection:
    def __init__(self, *, busy=False):
        self.is_busy, self.aborted = busy, False

    def abort(self):
        self.aborted = True


def test_the_connection_that_waits_longest_makes_room():
    table = ConnectionTable(ConnectionLimits(connections=10, per_client=3))
    busy, first, second, new = FakeConnection(busy=True), FakeConnection(), FakeConnection(), FakeConnection()
    assert all(table.admit(each, "a") for each in (busy, first, second, new))
    assert [each.aborted for each in (busy, first, second, new)] == [False, True, False, False]
    assert len(table) == 3


def test_a_client_does_not_push_out_another_one_with_fewer_connections():
    table = ConnectionTable(ConnectionLimits(connections=4, per_client=3))
    one, many = FakeConnection(), [FakeConnection() for _ in range(3)]
    assert table.admit(one, "a")
    assert all(table.admit(each, "b") for each in many)
    assert table.admit(FakeConnection(), "c")
    assert [one.aborted, *(each.aborted for each in many)] == [False, True, False, False]


def test_if_all_are_busy_there_is_no_room():
    table = ConnectionTable(ConnectionLimits(connections=2, per_client=1))
    assert table.admit(FakeConnection(busy=True), "a")
    assert not table.admit(FakeConnection(), "a")
    other = FakeConnection(busy=True)
    assert table.admit(other, "b")
    assert not table.admit(FakeConnection(), "c")
    table.release(other)
    table.release(other)
    assert table.admit(FakeConnection(), "c")


def test_if_all_are_busy_there_is_room_in_the_reserve():
    reserve = ConnectionTable(ConnectionLimits(connections=1, per_client=1))
    table = ConnectionTable(ConnectionLimits(connections=1, per_client=1), reserve)
    assert table.find_place(FakeConnection(busy=True), "a") is table
    idle, busy = FakeConnection(), FakeConnection(busy=True)
    assert table.find_place(idle, "b") is reserve
    assert table.find_place(busy, "b") is reserve
    assert (idle.aborted, busy.aborted) == (True, False)
    assert table.find_place(FakeConnection(), "c") is None


def test_the_addresses_of_one_network_of_ipv6_are_one_client():
    assert group_address("2001:db8::1") == group_address("2001:db8::ffff:1") != group_address("2001:db8:0:1::1")
    assert group_address("fe80::1%eth0") == "fe80::/64"
