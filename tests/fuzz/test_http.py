"""The HTTP interface under schemathesis: no request, whatever is in it, gives another answer than /openapi.json says.

`make test-fuzz SECONDS=600` tries every address for ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks

from headrace.web import Server
from headrace.web.openapi import OPERATIONS, PATH
from tests.fuzz.decoders import seconds_of
from tests.fuzz.mutations import fuzzed, repeat
from tests.web.servers import FakeApplication, ask, served

pytestmark = pytest.mark.slow

TOKEN = "token"  # noqa: S105
CHECKS: list[Any] = [  # 500 is a status that no address describes
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
STORES = ["counts", "windows", "sessions", "versions", "recent", "plain"]
HOSTILE = ["", "-1", "9" * 30, "9" * 5000, "1e9", "NaN", "\x00", "../..", "[" * 3000, "💧", "e30", "W1sxXSxbXV0"]
ENDLESS = "/events"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(application=FakeApplication(), token=TOKEN) as server:
        yield server


@pytest.fixture(scope="module")
def schema(server: Server) -> Any:
    return schemathesis.openapi.from_dict(ask(server.url, PATH, authorization=f"Bearer {TOKEN}").json)


def test_the_description_needs_the_token(server: Server):
    assert ask(server.url, PATH).status == 401


@pytest.mark.parametrize("path", [path for path in OPERATIONS if path != ENDLESS])
def test_no_request_gives_an_answer_that_is_not_described(path: str, schema: Any, server: Server):
    (operation,) = (schema[path][method] for method in schema[path])
    parameters = [given.name for given in OPERATIONS[path].parameters]
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

    @fuzzed(40)
    @given(cases, st.one_of(st.none(), st.sampled_from(STORES)), st.data())
    def ask_case(case: Any, store: str | None, data: st.DataObject) -> None:
        if store is not None and "store" in case.path_parameters:
            case.path_parameters["store"] = store
        if parameters and data.draw(st.booleans()):
            case.query[data.draw(st.sampled_from(parameters))] = data.draw(st.sampled_from(HOSTILE))
        response = case.call(base_url=server.url, headers={"authorization": f"Bearer {TOKEN}"})
        case.validate_response(response, checks=CHECKS)

    repeat(ask_case, seconds_of(path))
