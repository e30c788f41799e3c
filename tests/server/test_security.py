"""Who may what: keys, roles, and that no route escapes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.api_key import KEY_CHARS_MIN
from headrace.core.errors import ConfigError, ForbiddenError, UnauthenticatedError
from headrace.server.security import Access, ApiKey, Role, check_bind, is_local, parse_keys
from server.support import Linear, Server, serving
from server.test_rest import ROW

INFER = "infer-key-0123456789"
ADMIN = "admin-key-0123456789"
OLD = "admin-key-of-yesterday"
KEYS = (
    ApiKey.of("web", "infer", INFER),
    ApiKey.of("ops", "admin", ADMIN),
    ApiKey.of("ops-old", "admin", OLD),
)

# Every route with the role that it needs. A new route fails a test below until it stands here.
ROLES = {
    ("GET", "/"): None,
    ("GET", "/v2"): Role.INFER,
    ("GET", "/v2/health/live"): None,
    ("GET", "/v2/health/ready"): None,
    ("GET", "/v2/models"): Role.INFER,
    ("GET", "/v2/models/stats"): Role.INFER,
    ("POST", "/v2/repository/index"): Role.ADMIN,
    ("GET", "/v2/docs"): None,
    ("GET", "/v2/docs/dataplane.json"): None,
    ("GET", "/docs"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/v2/models/linear"): Role.INFER,
    ("GET", "/v2/models/linear/ready"): None,
    ("POST", "/v2/models/linear/infer"): Role.INFER,
    ("POST", "/v2/models/linear/infer_stream"): Role.INFER,
    ("POST", "/v2/models/linear/generate"): Role.INFER,
    ("POST", "/v2/models/linear/generate_stream"): Role.INFER,
    ("GET", "/v2/models/linear/stats"): Role.INFER,
    ("GET", "/v2/models/linear/config"): Role.INFER,
    ("GET", "/v2/models/linear/sequences"): Role.ADMIN,
    ("DELETE", "/v2/models/linear/sequences/a"): Role.ADMIN,
    ("POST", "/v2/repository/models/linear/load"): Role.ADMIN,
    ("POST", "/v2/repository/models/linear/unload"): Role.ADMIN,
}


@pytest.fixture(scope="module")
def server():
    with serving({"linear": Linear}, keys=KEYS) as opened:
        yield opened


def test_the_table_above_has_every_route(server: Server):
    """What the application can route is what is tested."""
    app = server.app
    found = {(method, path) for path, methods in app._fixed.items() for method in methods}
    for prefix, routes in (
        ("/v2/models/linear", app._of_model),
        ("/v2/repository/models/linear", app._of_repository),
        ("/v2/models/linear/sequences", {"a": app._of_sequence}),
    ):
        found |= {
            (method, f"{prefix}/{action}" if action else prefix)
            for action, methods in routes.items()
            for method in methods
        }
    assert found == set(ROLES)


FORMS = [lambda path: path, lambda path: path if path == "/" else f"{path}/"]


@pytest.mark.parametrize("form", FORMS, ids=["plain", "slash"])
@pytest.mark.parametrize(("method", "path"), ROLES, ids=lambda v: v)
def test_every_route_asks_for_its_role(server: Server, method, path, form):
    role, path = ROLES[method, path], form(path)
    paths = [path]
    if path.startswith("/v2/models/linear"):
        paths.append(path.replace("linear", "linear/versions/1"))
    methods = [method, "HEAD"] if method == "GET" else [method]
    for asked in [(m, p) for m in methods for p in paths]:
        for headers in (
            {},
            {"Authorization": "Bearer wrong-key-0123456789"},
            {"Authorization": f"Basic {ADMIN}"},
        ):
            answer = server.ask(*asked, b"{", headers)
            assert (answer.status == 401) is (role is not None)
            if role is not None:
                assert answer.headers["www-authenticate"] == "Bearer"
                assert asked[0] == "HEAD" or answer.error
        answer = server.ask(*asked, b"{", {"Authorization": f"Bearer {INFER}"})
        assert (answer.status == 403) is (role is Role.ADMIN)
        for key in (ADMIN, OLD):
            answer = server.ask(*asked, b"{", {"Authorization": f"bearer  {key} "})
            # Loading is refused to all: this server has no models folder.
            forbidden = "repository/models" in path
            assert answer.status not in (401, 403) or forbidden


def test_a_key_is_taken_from_the_header_alone(server: Server):
    assert server.get(f"/v2/models?key={ADMIN}&authorization=Bearer%20{ADMIN}").status == 401
    assert server.get("/v2/models", Cookie=f"key={ADMIN}").status == 401


def test_whether_a_model_exists_is_told_to_those_alone_who_may_ask(server: Server):
    assert server.get("/v2/models/linear").body == server.get("/v2/models/nope").body
    assert server.infer("nope", ROW).status == 401


def test_documents_name_models_to_those_alone_who_may_ask_them(server: Server):
    for path in ("/v2/docs", "/v2/docs/dataplane.json"):
        assert b"linear" not in server.get(path).body
        assert b"linear" in server.get(path, Authorization=f"Bearer {INFER}").body


def test_who_has_the_key_is_answered(server: Server):
    answer = server.infer("linear", ROW, headers={"Authorization": f"Bearer {INFER}"})
    assert answer.json["outputs"][0]["data"] == [10.0]
    assert INFER.encode() not in answer.body


def test_without_keys_everybody_may_everything():
    access = Access()
    assert access.open
    assert access.check(None, Role.ADMIN) == ""


@given(st.text(max_size=40))
def test_no_other_text_is_a_key(text):
    access = Access(KEYS)
    if text.strip().partition(" ")[2].strip() not in (INFER, ADMIN, OLD):
        with pytest.raises(UnauthenticatedError):
            access.check(text, Role.INFER)


def test_a_key_is_told_by_its_name_and_not_by_itself():
    access = Access(KEYS)
    assert access.check(f"Bearer {INFER}", Role.INFER) == "web"
    with pytest.raises(ForbiddenError) as raised:
        access.check(f"Bearer {INFER}", Role.ADMIN)
    assert INFER not in str(raised.value)
    assert INFER not in repr(KEYS)


def test_keys_are_read_from_lines():
    text = f"# ours\n\ninfer web {INFER}\n  admin\tops {ADMIN}\n"
    assert parse_keys(text, "keys") == KEYS[:2]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no key in it"),
        ("# only this", "no key in it"),
        ("infer web", "line 1: a line is ROLE NAME KEY"),
        (f"infer web {INFER} more", "line 1"),
        (f"\nroot web {INFER}", "infer or admin, not 'root'"),
        ("infer web " + "x" * (KEY_CHARS_MIN - 1), "too short"),
    ],
)
def test_wrong_lines_are_told(text, why):
    with pytest.raises(ConfigError, match=why) as raised:
        parse_keys(text, "keys")
    assert INFER not in str(raised.value)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("", False),
        ("127.0.0.1.example.org", False),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_an_open_address_needs_a_guard(host, local):
    assert is_local(host) is local
    check_bind(host, guarded=True, insecure=False)
    check_bind(host, guarded=False, insecure=True)
    if not local:
        with pytest.raises(ConfigError, match="--api-keys"):
            check_bind(host, guarded=False, insecure=False)
