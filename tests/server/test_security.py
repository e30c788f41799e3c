"""API keys and scopes of models, Host and Origin. No route is without a decision about its scope."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.app.serving import is_old_key_file, parse_old_keys
from headrace.core.errors import ConfigError, ForbiddenError, UnauthenticatedError
from headrace.jobs.access import KEY_CHARS_MIN, Access, Scope
from headrace.server.application import Guard, check_bind, is_local
from server.support import EchoAll, Linear, RestServer, key_of, serving, tensor
from server.test_rest import ROW

INFER = "infer-key-0123456789"
ADMIN = "admin-key-0123456789"
OLD = "admin-key-of-yesterday"
KEYS = (
    key_of("web", INFER, Scope.INFER),
    key_of("ops", ADMIN, Scope.MODELS),
    key_of("ops-old", OLD, Scope.ADMIN),
)
ACCESS = Access(dict(KEYS))

# The required scope of every route. A new route must be added here.
SCOPES = {
    ("GET", "/"): None,
    ("GET", "/v2"): Scope.INFER,
    ("GET", "/v2/health/live"): None,
    ("GET", "/v2/health/ready"): None,
    ("GET", "/v2/models"): Scope.INFER,
    ("GET", "/v2/models/stats"): Scope.MODELS,
    ("POST", "/v2/repository/index"): Scope.MODELS,
    ("GET", "/v2/docs"): None,
    ("GET", "/v2/docs/dataplane.json"): None,
    ("GET", "/docs"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/v2/models/linear"): Scope.INFER,
    ("GET", "/v2/models/linear/ready"): None,
    ("POST", "/v2/models/linear/infer"): Scope.INFER,
    ("POST", "/v2/models/linear/infer_stream"): Scope.INFER,
    ("POST", "/v2/models/linear/handle"): Scope.INFER,
    ("POST", "/v2/models/linear/generate"): Scope.INFER,
    ("POST", "/v2/models/linear/generate_stream"): Scope.INFER,
    ("GET", "/v2/models/linear/stats"): Scope.MODELS,
    ("GET", "/v2/models/linear/config"): Scope.INFER,
    ("GET", "/v2/models/linear/instances"): Scope.MODELS,
    ("PUT", "/v2/models/linear/instances"): Scope.MODELS,
    ("GET", "/v2/models/linear/sequences"): Scope.MODELS,
    ("DELETE", "/v2/models/linear/sequences/a"): Scope.MODELS,
    ("POST", "/v2/repository/models/linear/load"): Scope.MODELS,
    ("POST", "/v2/repository/models/linear/unload"): Scope.MODELS,
}


@pytest.fixture(scope="module")
def server():
    with serving({"linear": Linear}, keys=KEYS) as opened:
        yield opened


def test_scope_table_has_every_route(server: RestServer):
    """The table has exactly the routes of the application."""
    found = {
        (route.method, route.path.replace("{model_name}", "linear").replace("{sequence_id:path}", "a"))
        for route in server.app.routes
        if "{model_version}" not in route.path and route.action != "not_offered"
    }
    assert found == set(SCOPES)


FORMS = [lambda path: path, lambda path: path if path == "/" else f"{path}/"]


@for_each("form", FORMS)
@for_each(("method", "path"), SCOPES)
def test_every_route_requires_its_scope(server: RestServer, method, path, form):
    scope, path = SCOPES[method, path], form(path)
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
            assert (response.status == 401) is (scope is not None)
            if scope is not None:
                assert response.headers["www-authenticate"] == "Bearer"
                assert requested[0] == "HEAD" or response.error
        response = server.request(*requested, b"{", {"Authorization": f"Bearer {INFER}"})
        assert (response.status == 403) is (scope is Scope.MODELS)
        for key in (ADMIN, OLD):
            response = server.request(*requested, b"{", {"Authorization": f"bearer  {key} "})
            # Every load is refused, because this server has no models folder.
            forbidden = "repository/models" in path
            assert response.status not in (401, 403) or forbidden


def test_statistics_and_instances_need_models_or_monitor():
    """They show the load of all tenants."""
    keys = [key_of("web", INFER, Scope.INFER), key_of("scaler", ADMIN, Scope.MONITOR)]
    with serving({"linear": Linear}, keys=keys) as server:
        for path in ("/v2/models/stats", "/v2/models/linear/stats", "/v2/models/linear/instances"):
            assert server.get(path, Authorization=f"Bearer {INFER}").status == 403
            assert server.get(path, Authorization=f"Bearer {ADMIN}").status == 200
        change = server.request(
            "PUT", "/v2/models/linear/instances", {"instances": 2}, {"Authorization": f"Bearer {ADMIN}"}
        )
        assert change.status == 403


def test_key_is_read_only_from_the_header(server: RestServer):
    assert server.get(f"/v2/models?key={ADMIN}&authorization=Bearer%20{ADMIN}").status == 401
    assert server.get("/v2/models", Cookie=f"key={ADMIN}").status == 401


def test_model_existence_is_disclosed_only_with_a_key(server: RestServer):
    assert server.get("/v2/models/linear").error == server.get("/v2/models/nope").error
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
    assert access.check(None, Scope.MODELS).name == ""


@given(st.text(max_size=40))
def test_no_other_text_is_a_key(text):
    if text.strip().partition(" ")[2].strip() not in (INFER, ADMIN, OLD):
        with pytest.raises(UnauthenticatedError):
            ACCESS.check(text, Scope.INFER)


def test_key_is_shown_by_name_only():
    assert ACCESS.check(f"Bearer {INFER}", Scope.INFER).name == "web"
    with pytest.raises(ForbiddenError) as raised:
        ACCESS.check(f"Bearer {INFER}", Scope.MODELS)
    assert INFER not in str(raised.value)
    assert INFER not in repr(KEYS)


def test_key_limited_to_models_sees_no_other():
    limited = key_of("web", INFER, Scope.MODELS, models=frozenset({"linear"}))
    headers = {"Authorization": f"Bearer {INFER}"}
    with serving({"linear": Linear, "any": EchoAll}, keys=[limited]) as server:
        assert server.get("/v2/models", **headers).json == {"models": ["linear"]}
        assert [s["name"] for s in server.get("/v2/models/stats", **headers).json["model_stats"]] == [
            "linear"
        ]
        assert server.get("/v2/models/linear", **headers).status == 200
        for method, path in (
            ("GET", "/v2/models/any"),
            ("GET", "/v2/models/any/versions/1/stats"),
            ("POST", "/v2/models/any/infer"),
            ("POST", "/v2/models/any/generate"),
            ("POST", "/v2/repository/models/any/load"),
            ("GET", "/v2/models/any/instances"),
            ("PUT", "/v2/models/any/versions/1/instances"),
            ("GET", "/v2/models/any/sequences"),
        ):
            response = server.request(method, path, None, headers)
            assert (response.status, "may not use the model" in response.error) == (403, True), path
        assert b"any" not in server.get("/openapi.json", **headers).body.partition(b"components")[0]


def test_keys_of_the_old_format_are_parsed_with_a_warning():
    text = f"# ours\n\ninfer web {INFER}\n  admin\tops {ADMIN}\n"
    assert is_old_key_file(text)
    with pytest.warns(FutureWarning, match="headrace keys new"):
        keys = parse_old_keys(text, "keys")
    assert keys == dict(KEYS[:2])


@for_each("text", ["", "# only this", "[keys.web]\n", '[keys.web]\ndigest = "sha256:0"\n', "infer web"])
def test_other_texts_are_not_of_the_old_format(text):
    assert not is_old_key_file(text)


@for_each(
    ("text", "why"),
    [
        (f"infer web {INFER} more", "line 1"),
        (f"\nroot web {INFER}", "line 2: must be ROLE NAME KEY with the role infer or admin"),
        ("infer web " + "x" * (KEY_CHARS_MIN - 1), "too short"),
    ],
)
def test_malformed_key_lines_are_refused(text, why):
    assert is_old_key_file(text)
    with pytest.warns(FutureWarning), pytest.raises(ConfigError, match=why) as raised:
        parse_old_keys(text, "keys")
    assert INFER not in str(raised.value)


HOSTS = [
    ("localhost", True),
    ("LOCALHOST:8080", True),
    ("models.localhost", True),
    ("127.0.0.1:80", True),
    ("127.9.9.9", True),
    ("[::1]:8080", True),
    ("10.1.2.3", True),
    ("[fe80::1]", True),
    ("", True),
    ("evil.example", False),
    ("evil.example:8080", False),
    ("localhost.evil.example", False),
    ("127.0.0.1.nip.io", False),
]


@for_each(("host", "accepted"), HOSTS)
def test_local_server_accepts_local_names_only(host, accepted):
    guard = Guard(bound_to="127.0.0.1")
    headers = {b"host": host.encode()}
    if accepted:
        guard.check_source("GET", headers, public=True)
        assert guard.is_plain(headers)
        return
    assert not guard.is_plain(headers)
    with pytest.raises(ForbiddenError, match="--allow-host"):
        guard.check_source("GET", headers, public=True)


def test_named_hosts_are_accepted_and_limit_public_servers():
    evil, named = {b"host": b"evil.example"}, {b"host": b"Models.example.:8080"}
    Guard(bound_to="0.0.0.0").check_source("GET", evil, public=True)
    Guard(bound_to="127.0.0.1", allow_hosts=["*"]).check_source("GET", evil, public=True)
    for bound_to in ("127.0.0.1", "0.0.0.0"):
        guard = Guard(bound_to=bound_to, allow_hosts=["models.example"])
        guard.check_source("GET", named, public=True)
        with pytest.raises(ForbiddenError):
            guard.check_source("GET", evil, public=True)


def test_accepted_hosts_are_remembered_within_a_limit(monkeypatch):
    monkeypatch.setattr("headrace.server.application.HOSTS_MAX", 3)
    guard = Guard(bound_to="127.0.0.1")
    for port in range(10):
        guard.check_source("GET", {b"host": b"localhost:%d" % port}, public=True)
    assert len(guard._known_hosts) <= 3


@for_each(
    ("method", "headers", "accepted"),
    [
        ("POST", {"origin": "http://app.example", "host": "app.example"}, True),
        ("POST", {"origin": "http://app.example:81", "host": "app.example"}, False),
        ("POST", {"origin": "http://evil.example", "host": "app.example"}, False),
        ("POST", {"origin": "null", "host": "app.example"}, False),
        ("POST", {"origin": "null"}, False),
        ("POST", {"origin": "https://front.example", "host": "app.example"}, True),
        ("GET", {"origin": "http://evil.example", "host": "app.example"}, True),
        ("GET", {"sec-fetch-site": "cross-site"}, False),
        ("POST", {"sec-fetch-site": "cross-site"}, False),
        ("POST", {"sec-fetch-site": "same-origin"}, True),
        ("GET", {"sec-fetch-site": "none"}, True),
        ("GET", {"sec-fetch-site": "same-site", "host": "app.example"}, False),
        ("POST", {"sec-fetch-site": "same-site", "host": "app.example"}, False),
        (
            "GET",
            {"sec-fetch-site": "same-site", "origin": "http://app.example:81", "host": "app.example"},
            False,
        ),
        (
            "GET",
            {"sec-fetch-site": "same-site", "origin": "https://front.example", "host": "app.example"},
            True,
        ),
    ],
)
def test_pages_of_other_sites_are_refused(method, headers, accepted):
    guard = Guard(allow_hosts=["front.example", "*"])
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    if accepted:
        guard.check_source(method, sent, public=False)
        return
    assert not guard.is_plain(sent)
    with pytest.raises(ForbiddenError):
        guard.check_source(method, sent, public=False)


@for_each("site", [b"cross-site", b"same-site"])
def test_link_of_another_site_opens_the_documentation(site):
    Guard().check_source("GET", {b"sec-fetch-site": site}, public=True)
    with pytest.raises(ForbiddenError):
        Guard().check_source("POST", {b"sec-fetch-site": site}, public=True)


@for_each("direct", [True, False])
def test_guard_holds_for_inference(direct):
    body = {"inputs": [tensor("x", [1.0] * 4, shape=[1, 4])]}
    guard = Guard(bound_to="127.0.0.1")
    with serving({"linear": Linear}, guard=guard, direct=direct) as server:
        path = "/v2/models/linear/infer"
        assert server.post(path, body).status == 200
        for refused in (
            {"Host": "evil.example"},
            {"Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            assert server.post(path, body, refused).status == 403
        own = f"http://localhost:{server.port}"
        assert server.post(path, body, {"Origin": own, "Host": own.removeprefix("http://")}).status == 200


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
