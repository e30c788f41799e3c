"""The route table: lookup by path, declarations on handlers, and query parameters."""

from typing import Annotated

import msgspec
import pytest

from cases import for_each
from headrace.core.errors import DataError
from headrace.jobs.access import Scope
from headrace.server.application import NOWHERE, Router
from headrace.server.routes import Route, read_json, read_query, route, routes_of


class Handlers:
    @route("GET", "/things", (Scope.READ,), list[int], errors=(404,))
    async def find(self, exchange):
        """List things. They are numbers.

        More about them.
        """

    @route("GET", "/", (), is_hidden=True)
    @route("POST", "/things/{name}", ())
    async def make(self, exchange):
        """Make a thing of `a.b`."""


async def nothing(exchange):
    """Do nothing."""


def at(path, method="GET", *, is_lenient=False):
    return Route(method, path, path, (), nothing, is_lenient=is_lenient)


ROUTER = Router(
    [
        at("/"),
        at("/m/{name}", is_lenient=True),
        at("/m/stats"),
        at("/m/{name}/infer", "POST"),
        at("/m/{name}/s", is_lenient=True),
        at("/m/{name}/s/{id:path}", "DELETE"),
    ]
)


@for_each(
    ("path", "found", "arguments"),
    [
        ("/", "/", {}),
        ("/m/a", "/m/{name}", {"name": "a"}),
        ("/m/a/", "/m/{name}", {"name": "a"}),
        ("/m/stats", "/m/stats", {}),
        ("/m/stats/infer", "/m/{name}/infer", {"name": "stats"}),
        ("/m/a/s/", "/m/{name}/s", {"name": "a"}),
        ("/m/a/s/x/y", "/m/{name}/s/{id:path}", {"name": "a", "id": "x/y"}),
        ("/m/a/s//x", "/m/{name}/s/{id:path}", {"name": "a", "id": "/x"}),
        ("/m/a/s/x/", "/m/{name}/s/{id:path}", {"name": "a", "id": "x/"}),
    ],
)
def test_path_is_matched_by_its_route(path, found, arguments):
    for _ in range(2):  # the second time from memory
        endpoint = ROUTER.find(path)
        assert {r.path for r in endpoint.routes.values()} == {found}
        assert endpoint.arguments == arguments


@for_each("path", ["", "/m", "/m/", "/m//infer", "/m/a/infer/", "/m/a/b", "/m/stats/", "//"])
def test_other_paths_have_no_routes(path):
    if path == "/m/stats/":  # a literal route that is not lenient
        assert ROUTER.find(path) is NOWHERE
    assert not ROUTER.find(path).routes


def test_head_is_accepted_by_lenient_routes_only():
    assert ROUTER.find("/m/a").methods == ["GET", "HEAD"]
    assert ROUTER.find("/m/a").find("HEAD").method == "GET"
    assert ROUTER.find("/m/stats").methods == ["GET"]
    assert ROUTER.find("/m/stats").find("HEAD") is None


def test_remembered_paths_are_limited(monkeypatch):
    monkeypatch.setattr("headrace.server.application.KNOWN_PATHS_MAX", 3)
    for number in range(10):
        assert ROUTER.find(f"/m/{number}").arguments == {"name": str(number)}
        assert len(ROUTER._known) <= 3
    ROUTER.find("/m/" + "x" * 300)
    assert all(len(path) < 300 for path in ROUTER._known)


def test_routes_are_declared_on_their_handlers():
    handlers = Handlers()
    find, make, root = routes_of(handlers)
    assert (find.method, find.path, find.action, find.scopes) == ("GET", "/things", "find", (Scope.READ,))
    assert find.handler == handlers.find
    assert (find.operation.summary, find.operation.response) == ("List things", (list[int],))
    assert find.operation.description.endswith("More about them.")
    assert make.operation.summary == "Make a thing of `a.b`"
    assert (root.path, root.operation, root.handler) == ("/", None, handlers.make)


class Query(msgspec.Struct):
    name: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=9)] = 5
    since: int | None = None
    tag: list[str] = []
    is_done: bool = False


def test_query_is_read_by_its_declaration():
    assert read_query(Query, b"") == Query()
    query = read_query(Query, b"name=a%20b&limit=2&since=7&tag=x&tag=y&is_done=true&unknown=1")
    assert query == Query("a b", 2, 7, ["x", "y"], True)


@for_each(
    ("query", "why"),
    [
        (b"limit=10", "limit: Expected `int` <= 9"),
        (b"limit=1e0", "limit: must be a whole number"),
        (b"limit=", "limit: must be a whole number"),
        (b"since=null", "since: must be a whole number"),
        (b"is_done=maybe", "is_done: Expected `bool`"),
        (b"name=a%00", "NUL"),
    ],
)
def test_invalid_query_is_refused(query, why):
    with pytest.raises(DataError, match=why):
        read_query(Query, query)


@for_each(
    ("body", "why"),
    [
        (b"{", "the body is not JSON"),
        (b'"\xff"', "the body is not JSON"),
        (b'{"limit": "5"}', "limit: Expected"),
    ],
)
def test_invalid_body_is_refused(body, why):
    with pytest.raises(DataError, match=why):
        read_json(Query, body)
