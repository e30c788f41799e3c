"""API keys and roles. No route is without a role."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.api_key import KEY_CHARS_MIN
from headrace.core.errors import ConfigError, ForbiddenError, UnauthenticatedError
from headrace.server.security import Access, ApiKey, Role, check_bind, is_local, parse_keys
from server.support import Linear, RestServer, serving
from server.test_rest import ROW

INFER = "infer-key-0123456789"
ADMIN = "admin-key-0123456789"
OLD = "admin-key-of-yesterday"
KEYS = (
    ApiKey.from_text("web", "infer", INFER),
    ApiKey.from_text("ops", "admin", ADMIN),
    ApiKey.from_text("ops-old", "admin", OLD),
)

# The required role of every route. A new route must be added here.
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
    ("POST", "/v2/models/linear/handle"): Role.INFER,
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


def test_role_table_has_every_route(server: RestServer):
    """The table has exactly the routes of the application."""
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


@for_each("form", FORMS)
@for_each(("method", "path"), ROLES)
def test_every_route_requires_its_role(server: RestServer, method, path, form):
    role, path = ROLES[method, path], form(path)
    paths = [path]
    if path.startswith("/v2/models/linear"):
        paths.append(path.replace("linear", "linear/versions/1"))
    methods = [method, "HEAD"] if method == "GET" else [method]
    for requested in [(m, p) for m in methods for p in paths]:
        for headers in (
            {},
            {"Authorization": "Bearer wrong-key-0123456789"},
            {"Authorization": f"Basic {ADMIN}"},
        ):
            response = server.request(*requested, b"{", headers)
            assert (response.status == 401) is (role is not None)
            if role is not None:
                assert response.headers["www-authenticate"] == "Bearer"
                assert requested[0] == "HEAD" or response.error
        response = server.request(*requested, b"{", {"Authorization": f"Bearer {INFER}"})
        assert (response.status == 403) is (role is Role.ADMIN)
        for key in (ADMIN, OLD):
            response = server.request(*requested, b"{", {"Authorization": f"bearer  {key} "})
            # Every load is refused, because this server has no models folder.
            forbidden = "repository/models" in path
            assert response.status not in (401, 403) or forbidden


def test_key_is_read_only_from_the_header(server: RestServer):
    assert server.get(f"/v2/models?key={ADMIN}&authorization=Bearer%20{ADMIN}").status == 401
    assert server.get("/v2/models", Cookie=f"key={ADMIN}").status == 401


def test_model_existence_is_disclosed_only_with_a_key(server: RestServer):
    assert server.get("/v2/models/linear").body == server.get("/v2/models/nope").body
    assert server.infer("nope", ROW).status == 401


def test_documentation_names_models_only_with_a_key(server: RestServer):
    for path in ("/v2/docs", "/v2/docs/dataplane.json"):
        assert b"linear" not in server.get(path).body
        assert b"linear" in server.get(path, Authorization=f"Bearer {INFER}").body


def test_valid_key_is_accepted(server: RestServer):
    response = server.infer("linear", ROW, headers={"Authorization": f"Bearer {INFER}"})
    assert response.json["outputs"][0]["data"] == [10.0]
    assert INFER.encode() not in response.body


def test_without_keys_everything_is_allowed():
    access = Access()
    assert access.open
    assert access.check(None, Role.ADMIN) == ""


@given(st.text(max_size=40))
def test_no_other_text_is_a_key(text):
    access = Access(KEYS)
    if text.strip().partition(" ")[2].strip() not in (INFER, ADMIN, OLD):
        with pytest.raises(UnauthenticatedError):
            access.check(text, Role.INFER)


def test_key_is_shown_by_name_only():
    access = Access(KEYS)
    assert access.check(f"Bearer {INFER}", Role.INFER) == "web"
    with pytest.raises(ForbiddenError) as raised:
        access.check(f"Bearer {INFER}", Role.ADMIN)
    assert INFER not in str(raised.value)
    assert INFER not in repr(KEYS)


def test_keys_are_parsed_from_lines():
    text = f"# ours\n\ninfer web {INFER}\n  admin\tops {ADMIN}\n"
    assert parse_keys(text, "keys") == KEYS[:2]


@for_each(
    ("text", "why"),
    [
        ("", "keys has no keys"),
        ("# only this", "keys has no keys"),
        ("infer web", "line 1: must be ROLE NAME KEY"),
        (f"infer web {INFER} more", "line 1"),
        (f"\nroot web {INFER}", "infer or admin, not 'root'"),
        ("infer web " + "x" * (KEY_CHARS_MIN - 1), "too short"),
    ],
)
def test_malformed_key_lines_are_refused(text, why):
    with pytest.raises(ConfigError, match=why) as raised:
        parse_keys(text, "keys")
    assert INFER not in str(raised.value)


@for_each(
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
def test_public_address_needs_access_control(host, local):
    assert is_local(host) is local
    check_bind(host, guarded=True, insecure=False)
    check_bind(host, guarded=False, insecure=True)
    if not local:
        with pytest.raises(ConfigError, match="--api-keys"):
            check_bind(host, guarded=False, insecure=False)
