"""Who is let in, what they may do, and what never gets out."""

import ast
import json
import pickle
import socket
from contextlib import suppress
from pathlib import Path

import pytest

import headrace
from headrace.checkpoint.storage import ObjectStorage
from headrace.errors import ConfigError
from headrace.query import Follower
from headrace.query.client import Client
from headrace.secrets import mask_secrets, mask_settings
from headrace.web import ApplicationView, Server
from headrace.web.access import COOKIE, LoginLimit
from tests.query.programs import every_kind, finished
from tests.web.servers import FakeApplication, ask, served

pytestmark = pytest.mark.slow
TOKEN = "right horse battery staple"  # noqa: S105
SOURCES = Path(headrace.__file__).parent


@pytest.fixture(scope="module")
def cluster():
    return finished(limit=3)


@pytest.fixture(scope="module")
def open_server(cluster):
    with served(cluster) as server:
        yield server


@pytest.fixture
def closed_server(cluster):
    with served(cluster, FakeApplication(), token=TOKEN) as server:
        yield server


# ---------------------------------------------------------------------------------------------------------- addresses
def test_without_a_word_it_listens_on_this_machine_only(open_server):
    assert open_server._listeners[0].socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104
@pytest.mark.parametrize("token", [None, ""])
def test_without_a_word_there_is_a_token_that_was_not_given(cluster, host, token):
    view = ApplicationView(follower=Follower(cluster.storage), application=FakeApplication())
    with Server(view, host=host, token=token) as server, Server(view) as other:
        url = f"http://127.0.0.1:{server.port}"
        for path in ("/stores", "/metrics", "/api/status", "/events", "/api/settings"):
            assert ask(url, path).status == 401
        assert ask(url, "/actions/pause", method="POST").status == 401
        assert ask(url, "/stores", authorization="Bearer ").status == 401
        assert len(server.token or "") >= 32
        assert server.token != other.token
        assert server.link == f"{server.url}/#token={server.token}"
        with Client(f"{url}/#token={server.token}") as client:
            assert client.stores()


def test_a_token_that_was_given_is_not_in_the_link(closed_server, open_server):
    assert closed_server.link == closed_server.url
    assert open_server.link == open_server.url


def test_a_token_and_no_token_are_not_asked_for_at_once(cluster):
    with pytest.raises(ConfigError, match="leave it out, or the token"):
        Server(ApplicationView(follower=Follower(cluster.storage)), token=TOKEN, insecure=True)


def test_a_port_that_is_taken_is_explained(open_server):
    with pytest.raises(ConfigError, match="Choose another port"):
        Server(ApplicationView(follower=Follower(ObjectStorage.at("memory:///", {}))), port=open_server.port)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "", "localhost.evil.example", "10.0.0.1"]
)
def test_a_host_that_is_not_ours_is_refused_so_that_no_name_can_be_bound_to_it_later(open_server, host):
    assert ask(open_server.url, "/stores", host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:80"])
def test_our_own_names_are_known_whatever_the_port(open_server, host):
    assert ask(open_server.url, "/stores", host=host).status == 200


# ------------------------------------------------------------------------------------------------------------- tokens
@pytest.mark.parametrize("path", ["/stores", "/stores/counts/keys/k1", "/metrics", "/api/status", "/events"])
@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer ", "Basic eDp5", f"Bearer {TOKEN}x", "Bearer ü"])
def test_with_a_token_nothing_is_told_to_who_has_none(closed_server, path, given):
    headers = {} if given is None else {"authorization": given.encode().decode("latin-1")}
    answer = ask(closed_server.url, path, **headers)
    assert answer.status == 401
    assert TOKEN.encode() not in answer.body


def test_with_the_token_everything_is_told(closed_server):
    assert ask(closed_server.url, "/stores", authorization=f"Bearer {TOKEN}").status == 200


def test_the_page_and_the_health_need_no_token_and_have_no_data(closed_server):
    assert b"counts" not in ask(closed_server.url, "/").body
    assert set(ask(closed_server.url, "/health").json) == {"healthy", "verdict"}


def test_a_browser_gets_a_cookie_for_the_token_that_scripts_and_other_sites_cannot_use(closed_server):
    url = closed_server.url
    assert ask(url, "/session", method="POST", body=b'{"token": "wrong"}').status == 401
    assert ask(url, "/session", method="POST", body=b"nonsense").status == 400
    answer = ask(url, "/session", method="POST", body=json.dumps({"token": TOKEN}).encode())
    cookie = answer.headers["set-cookie"]
    assert answer.status == 200
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    value = cookie.split(";")[0]
    assert ask(url, "/stores", cookie=value).status == 200
    assert ask(url, "/stores", cookie=f"{COOKIE}_{closed_server.port}=forged").status == 401
    with served(finished(limit=3), token="another") as other:  # noqa: S106
        assert ask(other.url, "/stores", cookie=value).status == 401
        answer = ask(other.url, "/session", method="POST", body=b'{"token": "another"}')
        names = {cookie.partition("=")[0] for cookie in (value, answer.headers["set-cookie"])}
        assert len(names) == 2  # a browser gives the cookies of a host to all of its ports


# ------------------------------------------------------------------------------------------------------------- guesses
def guess(url, token, *, by_header):
    if by_header:
        return ask(url, "/stores", authorization=f"Bearer {token}")
    return ask(url, "/session", method="POST", body=json.dumps({"token": token}).encode())


@pytest.mark.parametrize("by_header", [True, False], ids=["header", "login"])
def test_wrong_tokens_are_limited_and_then_the_right_one_is_not_found_either(closed_server, by_header):
    found = [guess(closed_server.url, f"guess {n}", by_header=by_header).status for n in range(LoginLimit.TRIES + 5)]
    assert found == [401] * LoginLimit.TRIES + [429] * 5
    for by_the_other in (by_header, not by_header):
        answer = guess(closed_server.url, TOKEN, by_header=by_the_other)
        assert answer.status == 429
        assert 0 < int(answer.headers["retry-after"]) <= LoginLimit.INTERVAL
    assert ask(closed_server.url, "/health").status == 200


def test_a_client_has_the_address_that_it_comes_from_not_one_that_it_names(closed_server):
    for number in range(LoginLimit.TRIES):
        ask(closed_server.url, "/stores", authorization=f"Bearer guess {number}", x_forwarded_for=f"10.0.0.{number}")
    answer = ask(closed_server.url, "/stores", authorization="Bearer guess", x_forwarded_for="10.0.0.99")
    assert answer.status == 429


def test_a_browser_that_is_logged_in_is_not_locked_out_by_guesses(closed_server):
    cookie = guess(closed_server.url, TOKEN, by_header=False).headers["set-cookie"].split(";")[0]
    for number in range(LoginLimit.TRIES + 1):
        guess(closed_server.url, f"guess {number}", by_header=True)
    assert ask(closed_server.url, "/stores", cookie=cookie).status == 200


def test_a_program_with_an_old_token_locks_nobody_out(closed_server):
    for _ in range(3 * LoginLimit.TRIES):
        assert guess(closed_server.url, "old", by_header=True).status == 401
    assert guess(closed_server.url, TOKEN, by_header=True).status == 200


def test_the_limit_lets_one_more_try_after_its_interval_and_is_of_one_client():
    now = [1000.0]
    limit = LoginLimit(lambda: now[0])
    for number in range(LoginLimit.TRIES):
        assert limit.seconds_left("a") == 0
        limit.add_failure("a", str(number))
    assert limit.seconds_left("a") == LoginLimit.INTERVAL
    assert limit.seconds_left("b") == 0
    now[0] += LoginLimit.INTERVAL
    assert limit.seconds_left("a") == 0
    limit.add_failure("a", "again")
    assert limit.seconds_left("a") == LoginLimit.INTERVAL
    now[0] += 1000 * LoginLimit.INTERVAL
    limit.add_failure("a", "later")
    assert limit.seconds_left("a") == 0


def test_the_limit_remembers_a_bounded_number_of_clients():
    limit = LoginLimit()
    for number in range(LoginLimit.CLIENTS + 100):
        limit.add_failure(str(number), "x")
    assert len(limit._guesses) == LoginLimit.CLIENTS


# ------------------------------------------------------------------------------------------------------------ actions
def test_actions_are_done_with_the_token_only(cluster):
    application = FakeApplication()
    with served(cluster, application, token=TOKEN) as server:
        for action in ("pause", "resume", "stop"):
            assert ask(server.url, f"/actions/{action}", method="POST").status == 401
            assert ask(server.url, f"/actions/{action}", authorization=f"Bearer {TOKEN}").status == 405
        assert application.actions == []
        for action in ("pause", "resume", "stop", "format"):
            ask(server.url, f"/actions/{action}", method="POST", authorization=f"Bearer {TOKEN}")
    assert application.actions == ["pause", "resume", "stop"]


def test_the_number_of_slots_is_set_with_the_token_only(cluster):
    application = FakeApplication()
    with served(cluster, application, token=TOKEN) as server:
        assert ask(server.url, "/actions/scale?slots=4", method="POST").status == 401
        with Client(server.url, token=TOKEN) as client:
            assert client.scale(4) == 2
            for wrong in ("0", "-1", "many", "", "9" * 5000):
                answer = ask(
                    server.url, f"/actions/scale?slots={wrong}", method="POST", authorization=f"Bearer {TOKEN}"
                )
                assert answer.status == 400
    assert application.actions == ["scale 4"]


def test_without_a_token_there_are_no_actions_not_even_here(cluster):
    application = FakeApplication()
    with served(cluster, application) as server:
        assert ask(server.url, "/actions/pause", method="POST").status == 403
        assert ask(server.url, "/api/status").json["actions"] == []
    assert application.actions == []


def test_another_site_cannot_act_though_the_browser_sends_the_cookie(closed_server):
    site, path = "https://evil.example", "/actions/pause"
    answer = ask(closed_server.url, path, method="POST", authorization=f"Bearer {TOKEN}", origin=site)
    assert answer.status == 403


# ------------------------------------------------------------------------------------------------------------ answers
@pytest.mark.parametrize(
    "path", ["/", "/stores", "/metrics", "/health", "/static/dashboard.js", "/nowhere", "/stores/x"]
)
def test_every_answer_says_that_nothing_in_it_is_to_be_run(open_server, path):
    headers = ask(open_server.url, path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in policy


def test_other_origins_are_not_invited(open_server):
    answer = ask(open_server.url, "/stores", origin="https://evil.example")
    assert [name for name in answer.headers if name.lower().startswith("access-control")] == []
    assert ask(open_server.url, "/stores", method="OPTIONS", origin="https://evil.example").status == 405


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST"])
def test_stores_can_only_be_read(open_server, method):
    assert ask(open_server.url, "/stores/counts/keys/k1", method=method).status == 405


def test_a_body_may_not_be_large_nor_of_unknown_size(open_server):
    assert ask(open_server.url, "/session", method="POST", body=b"x" * 5000).status == 413
    assert ask(open_server.url, "/session", method="POST", transfer_encoding="chunked").status == 413


def test_a_request_that_is_too_long_or_is_none_does_not_hurt(open_server):
    for raw in (b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n", b"\x00\xff nonsense\r\n\r\n"):
        # The server may hang up before it has read all.
        with socket.create_connection(("127.0.0.1", open_server.port), timeout=5) as connection, suppress(OSError):
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
    assert ask(open_server.url, "/stores").status == 200


@pytest.mark.parametrize("piece", [b"x" * 1000, b"x: y\r\n" * 100], ids=["one header", "many headers"])
def test_headers_without_end_are_not_read_to_the_end(open_server, piece):
    with socket.create_connection(("127.0.0.1", open_server.port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")
        with suppress(ConnectionError):  # it may hang up before it has read all
            for _ in range(200):
                connection.sendall(piece)
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert ask(open_server.url, "/stores").status == 200


def test_only_so_many_listen_to_events_at_once(cluster):
    with served(cluster) as server:
        held = []
        for _ in range(16):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=5)
            connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in connection.recv(65_536)
            while b"event:" not in connection.recv(65_536):
                pass
            held.append(connection)
        assert ask(server.url, "/events").status == 503
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    "name", ["../server.py", "..%2fserver.py", "index.html", "%2e%2e/access.py", "dashboard.js%00"]
)
def test_only_files_that_are_known_are_served(open_server, name):
    assert ask(open_server.url, f"/static/{name}").status == 404


# ------------------------------------------------------------------------------------------------------------ secrets
def test_secrets_are_masked_in_texts_and_settings():
    assert mask_secrets("kafka://user:pa$$@host:9092/x") == "kafka://***@host:9092/x"
    assert "hunter2" not in mask_secrets("cannot connect: sasl.password = 'hunter2', retry")
    assert mask_settings({"sasl.jaas.config": "x", "a.token": "y", "b": "s3://k:s@bucket", "c": None}) == {
        "a.token": "***", "b": "s3://***@bucket", "sasl.jaas.config": "***",
    }  # fmt: skip


def test_secrets_are_in_no_page_and_no_error(cluster):
    application = FakeApplication(
        state="ERROR", error="kafka://me:hunter2@broker:9092 is gone; ssl.key.password=hunter2"
    )
    with served(
        cluster, application, view={"settings": {"sasl.password": "hunter2", "log": "kafka://x:hunter2@h"}}
    ) as server:
        for path in ("/api/status", "/api/settings", "/health", "/metrics", "/api/durability"):
            assert b"hunter2" not in ask(server.url, path).body
        assert ask(server.url, "/health").status == 503


def raise_quote(record):
    raise RuntimeError(f"{record} is charged with the password hunter2")


def test_an_unexpected_error_reveals_nothing(cluster, caplog, capsys):
    class Broken(FakeApplication):
        def samples(self, node):
            raise_quote("4" + "111")

    node = every_kind().describe().subtopologies[0].nodes[0].name
    with served(cluster, Broken()) as server:
        answer = ask(server.url, f"/api/nodes/{node}")
    assert (answer.status, answer.json["error"]) == (500, "Failure")
    assert b"hunter2" not in answer.body
    (said,) = [line.getMessage() for line in caplog.records if line.name == "headrace.web.access"]
    assert said.startswith("a request to the web server failed: RuntimeError\n")
    assert "in raise_quote" in said
    for text in (answer.body.decode(), said, capsys.readouterr().err):
        assert "4111" not in text


# ----------------------------------------------------------------------------------------------------------- unpickling
# Modules whose functions run code that is in their input.
UNSAFE = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "multiprocessing", "shelve", "yaml"}
# The modules of Headrace that use them, with what they load, and how they know where it comes from.
UNPICKLING = {
    "spark/job.py": "a job whose digest Spark has brought; an error that came over an authenticated connection",
    "spark/slot.py": "a job that came over an authenticated connection and has the digest that Spark has brought",
}


def find_unsafe(path: Path) -> set[str]:
    """The modules and functions that a file uses to run code from its input, imported in whatever way."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = list[str]()
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                names = [node.module or "", *(alias.name for alias in node.names)]
            case ast.Constant(value=str(text)):  # lazy_extra("pyspark.cloudpickle", …)
                names = [text]
            case ast.Call(func=ast.Name(id="eval" | "exec" | "__import__" as name)):
                found.add(name)
            case ast.Attribute(attr="read_pickle" | "to_pickle") | ast.keyword(arg="allow_pickle"):
                found.add("pickle")
            case _:
                pass
        found |= {part for name in names for part in name.split(".")} & UNSAFE
    return found


@pytest.mark.slow
def test_only_what_the_driver_and_its_slots_send_is_unpickled():
    used = {path.relative_to(SOURCES).as_posix(): find_unsafe(path) for path in SOURCES.rglob("*.py")}
    assert len(used) > 200
    assert {path: names for path, names in used.items() if names} == {path: {"cloudpickle"} for path in UNPICKLING}


@pytest.mark.parametrize(
    "source, found",
    [
        ("import pickle", {"pickle"}),
        ("from pyspark import cloudpickle as c", {"cloudpickle"}),
        ("from multiprocessing.connection import Client", {"multiprocessing"}),
        ("load = lazy_extra('pyspark.cloudpickle', 'spark')", {"cloudpickle"}),
        ("eval(text)", {"eval"}),
        ("pandas.read_pickle(path)", {"pickle"}),
        ("numpy.load(path, allow_pickle=True)", {"pickle"}),
        ("ast.parse(text, mode='eval')  # is not pickle", set()),
    ],
)
def test_the_search_finds_every_way_to_unpickle(tmp_path, source, found):
    (tmp_path / "module.py").write_text(source)
    assert find_unsafe(tmp_path / "module.py") == found


def test_a_pickle_in_a_checkpoint_is_damage_and_is_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "exploded",)

    cluster = finished()
    name = f"manifests/{cluster.coordinator.ledger.number:012}"
    cluster.storage.delete(name)
    cluster.storage.create(name, pickle.dumps(Bomb()))
    with served(cluster) as server:
        assert ask(server.url, "/stores").status == 503
    assert not (tmp_path / "exploded").exists()
