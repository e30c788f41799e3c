"""Sessions of browsers: what a cookie stands for, when it ends, and what it may not do."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ForbiddenError, UnauthenticatedError
from headrace.jobs.access import Access, Scope, hash_key
from headrace.server.application import Guard
from headrace.server.sessions import SESSION_S, Sessions, cookie_name
from jobs.service_support import key_of, served_jobs
from server.support import Linear, serving
from server.support import key_of as model_key

WEB = "web-key-0123456789abc"
ACCESS = Access(dict([model_key("web", WEB, Scope.READ)]))
BEARER = f"Bearer {WEB}"
NOW_S = 1_000_000


def sessions(access=ACCESS, *, key=bytes(32), now_s=NOW_S):
    return Sessions(access, key, wall_s=lambda: now_s)


def with_cookie(value, **headers):
    sent = {"host": "localhost:8090", "cookie": f"a=b; headrace-session-8090={value}", **headers}
    return {name.replace("_", "-").encode(): text.encode() for name, text in sent.items()}


COOKIE = sessions().create(BEARER)[1]


def test_cookie_stands_for_the_key_until_the_session_ends():
    session = sessions().find(with_cookie(COOKIE))
    assert (session.key.name, session.expires_s) == ("web", NOW_S + SESSION_S)
    assert sessions(now_s=NOW_S + SESSION_S - 1).find(with_cookie(COOKIE)) == session
    with pytest.raises(UnauthenticatedError, match="POST /v1/session"):
        sessions(now_s=NOW_S + SESSION_S).find(with_cookie(COOKIE))


def test_cookie_has_no_key():
    assert WEB.encode() not in base64.urlsafe_b64decode(COOKIE)


def test_session_ends_with_its_key_and_with_the_signing_key():
    for other in (sessions(Access(dict([model_key("web", f"{WEB}d", Scope.READ)]))), sessions(key=b"1" * 32)):
        with pytest.raises(UnauthenticatedError):
            other.find(with_cookie(COOKIE))


@given(at=st.integers(0), flip=st.integers(1, 255))
def test_forged_cookie_is_refused(at, flip):
    token = bytearray(base64.urlsafe_b64decode(COOKIE))
    token[at % len(token)] ^= flip
    with pytest.raises(UnauthenticatedError):
        sessions().find(with_cookie(base64.urlsafe_b64encode(token).decode()))


@given(st.binary(max_size=100).filter(lambda value: b";" not in value and value.strip() != COOKIE.encode()))
def test_no_other_value_is_a_session(value):
    with pytest.raises(UnauthenticatedError):
        sessions().find({b"host": b"h:1", b"cookie": b"headrace-session-1=" + value})


def test_cookies_of_other_ports_are_ignored():
    headers = with_cookie(COOKIE)
    for host, name in ((b"localhost:81", "headrace-session-81"), (b"app.example", "headrace-session")):
        assert cookie_name({**headers, b"host": host}) == name
        assert sessions().find({**headers, b"host": host}) is None
    assert sessions().find({b"host": b"localhost:8090"}) is None


def test_session_needs_a_key():
    for authorization in (None, "Bearer no-such-key-0123456789", f"Basic {WEB}"):
        with pytest.raises(UnauthenticatedError):
            sessions().create(authorization)


@for_each(
    ("method", "headers", "accepted"),
    [
        ("GET", {}, True),
        ("POST", {}, False),
        ("DELETE", {}, False),
        ("POST", {"origin": "http://localhost:8090"}, True),
        ("POST", {"sec_fetch_site": "same-origin"}, True),
        ("POST", {"sec_fetch_site": "none"}, False),
    ],
)
def test_change_with_a_cookie_must_prove_its_origin(method, headers, accepted):
    guard, sent = Guard(ACCESS, sessions=sessions()), with_cookie(COOKIE, **headers)
    if accepted:
        assert guard.authenticate(method, sent, Scope.READ).name == "web"
        return
    with pytest.raises(ForbiddenError, match="Origin"):
        guard.authenticate(method, sent, Scope.READ)


def test_session_has_the_scopes_of_its_key():
    with pytest.raises(ForbiddenError, match="submit"):
        Guard(ACCESS, sessions=sessions()).authenticate("GET", with_cookie(COOKIE), Scope.SUBMIT)


def test_key_of_the_header_precedes_the_cookie():
    access = Access({**dict([model_key("web", WEB, Scope.READ)]), hash_key("ops-key-0123456789ab"): OPS})
    guard, headers = Guard(access, sessions=sessions(access)), with_cookie(COOKIE)
    headers[b"authorization"] = b"Bearer ops-key-0123456789ab"
    assert guard.authenticate("POST", headers, Scope.OPERATE).name == "ops"


OPS = model_key("ops", "ops-key-0123456789ab", Scope.OPERATE)[1]


def test_server_without_sessions_or_keys_ignores_cookies():
    with pytest.raises(UnauthenticatedError, match="missing"):
        Guard(ACCESS).authenticate("GET", with_cookie(COOKIE), Scope.READ)
    open_guard = Guard(sessions=sessions(Access()))
    assert open_guard.authenticate("POST", with_cookie("anything"), Scope.READ).name == ""


def test_login_use_and_logout_over_http():
    text, digest, known = key_of("shop", Scope.READ)
    with served_jobs(keys=[(text, digest, known)]) as served, served.client() as browser:
        assert browser.post("/v1/session").status_code == 401
        login = browser.post("/v1/session", headers={"Authorization": f"Bearer {text}"})
        document = login.json()
        assert (login.status_code, document["name"], document["scopes"]) == (200, "shop", ["read"])
        cookie = login.headers["set-cookie"]
        assert cookie.endswith(f"; Path=/; Max-Age={SESSION_S}; HttpOnly; SameSite=Strict")
        assert browser.get("/v1/jobs").status_code == 200
        assert browser.get("/v1/session").json() == document
        with served.client(text) as program:
            for headers in ({}, {"Cookie": cookie.partition(";")[0]}):
                own = program.get("/v1/session", headers=headers).json()
                assert own == {**document, "expires_at_ms": None}, "the header precedes the cookie"
        page = {"Origin": served.url}
        assert browser.post("/v1/session", headers=page).status_code == 401, (
            "a session does not prolong itself"
        )
        ended = browser.delete("/v1/session", headers=page)
        assert (ended.status_code, "Max-Age=0" in ended.headers["set-cookie"]) == (204, True)
        assert browser.get("/v1/jobs").status_code == 401


def test_session_sees_the_models_of_its_key_in_the_documentation():
    access = Access(dict([model_key("web", WEB, Scope.INFER)]))
    used = sessions(access)
    with serving({"linear": Linear}, guard=Guard(access, sessions=used)) as server:
        name = f"headrace-session-{server.port}"
        page = {"Host": f"localhost:{server.port}", "Cookie": f"{name}={used.create(BEARER)[1]}"}
        assert b"linear" in server.get("/v2/docs", **page).body
        assert b"linear" not in server.get("/v2/docs").body


def test_cookie_behind_tls_is_sent_over_tls_only():
    text, digest, known = key_of("shop", Scope.READ)
    headers = {"Authorization": f"Bearer {text}", "X-Forwarded-Proto": "https"}
    with served_jobs(keys=[(text, digest, known)]) as served, served.client() as browser:
        assert browser.post("/v1/session", headers=headers).headers["set-cookie"].endswith("; Secure")


def test_server_without_keys_needs_no_session():
    with served_jobs() as served, served.client() as browser:
        for response in (browser.post("/v1/session"), browser.get("/v1/session")):
            document = response.json()
            assert (document["name"], document["expires_at_ms"], "infer" in document["scopes"]) == (
                "",
                None,
                True,
            )
            assert "set-cookie" not in response.headers
