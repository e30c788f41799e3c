"""Keys of the job API: what each opens, what a file of them may say, and how mistakes in it are told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.api_key import digest_of, digest_text, parse_digest
from headrace.core.errors import (
    ConfigError,
    ForbiddenError,
    LimitError,
    QueueFullError,
    UnauthenticatedError,
)
from headrace.jobs.access import (
    ANYONE,
    INLINE_BYTES_MAX_DEFAULT,
    PENDING_MAX_DEFAULT,
    JobAccess,
    JobKey,
    Scope,
    key_lines,
    parse_job_keys,
)

WEB, WEB_NEW, OPS = "hr_web-0123456789", "hr_web-new-0123456789", "hr_ops-0123456789"
FILE = f"""
[keys.web]
digest = ["{digest_text(digest_of(WEB))}", "{digest_text(digest_of(WEB_NEW))}"]
tenant = "shop"
scopes = ["submit", "read"]
queues = ["default", "night"]
models = ["churn"]
inputs = ["s3://shop/in", "/data/shop"]
outputs = ["S3://shop/out/"]
pending_max = 3
inline_bytes_max = 0

[keys."ops.eu"]
digest = "{digest_text(digest_of(OPS))}"
scopes = ["operate"]
"""


@pytest.fixture
def access() -> JobAccess:
    return JobAccess(parse_job_keys(FILE, "keys.toml"))


def test_a_key_opens_what_its_table_says(access):
    key = access.check(f"Bearer {WEB}", Scope.SUBMIT)
    assert (key.name, key.tenant, key.sees) == ("web", "shop", "shop")
    assert (key.pending_max, key.inline_bytes_max) == (3, 0)
    assert key.inputs.require("s3://shop/in/k", "input") == "s3://shop/in/k"
    assert key.inputs.require("/data/shop/k", "input") == "/data/shop/k"
    assert key.outputs.prefixes == ("s3://shop/out/",)
    key.require_queue("night")
    key.require_model("churn")
    key.require_model("churn@2")
    for refused in (
        lambda: key.require_queue("other"),
        lambda: key.require_model("fraud"),
        lambda: key.require_model(""),
        lambda: key.inputs.require("s3://shop/out/k", "input"),
        lambda: key.outputs.require("s3://shop/in/k", "output"),
        lambda: key.outputs.require("s3://shop/outer/k", "output"),
    ):
        with pytest.raises(ForbiddenError):
            refused()


def test_what_a_table_leaves_out_is_every_name_and_no_place(access):
    key = access.check(f"Bearer {OPS}", Scope.OPERATE)
    assert (key.name, key.tenant) == ("ops.eu", "ops.eu")
    assert (key.pending_max, key.inline_bytes_max) == (PENDING_MAX_DEFAULT, INLINE_BYTES_MAX_DEFAULT)
    key.require_queue("anything")
    key.require_model("anything")
    for places in (key.inputs, key.outputs):
        with pytest.raises(ForbiddenError):
            places.require("s3://shop/in/k", "place")
    with pytest.raises(ConfigError):
        key.inputs.require("/data/shop/k", "input")


def test_while_a_key_is_replaced_both_are_the_same(access):
    assert access.check(f"Bearer {WEB}", Scope.READ) == access.check(f"Bearer {WEB_NEW}", Scope.READ)


@given(st.one_of(st.none(), st.text(), st.text().map(lambda text: f"Bearer {text}")))
def test_nothing_else_opens_it(said):
    with pytest.raises(UnauthenticatedError):
        JobAccess(parse_job_keys(FILE, "keys.toml")).check(said, Scope.READ)


# Which scopes a key with one scope alone has.
INCLUDED = {
    Scope.SUBMIT: {Scope.SUBMIT},
    Scope.READ: {Scope.READ},
    Scope.OPERATE: {Scope.OPERATE, Scope.READ},
    Scope.ADMIN: set(Scope),
    Scope.EVENTS: {Scope.EVENTS},
}


@pytest.mark.parametrize("asked", Scope)
@pytest.mark.parametrize("own", Scope)
def test_scopes_are_asked_for_one_by_one(own, asked):
    key = JobKey("k", "t", frozenset({own}))
    access = JobAccess({digest_of(WEB): key})
    if asked in INCLUDED[own]:
        assert access.check(f"Bearer {WEB}", asked) is key
    else:
        with pytest.raises(ForbiddenError, match=f"'k' lacks the scope {asked}"):
            access.check(f"Bearer {WEB}", asked)
    assert key.sees == (None if Scope.OPERATE in INCLUDED[own] else "t")


def test_one_of_several_scopes_is_enough(access):
    assert access.check(f"Bearer {OPS}", Scope.SUBMIT, Scope.OPERATE).name == "ops.eu"
    with pytest.raises(ForbiddenError, match="lacks the scope submit or admin"):
        access.check(f"Bearer {OPS}", Scope.SUBMIT, Scope.ADMIN)


def test_what_a_key_removes_is_its_tenants_unless_it_may_all():
    tenants = {scope: JobKey("k", "t", frozenset({scope, Scope.SUBMIT})).removes for scope in Scope}
    assert [scope for scope, tenant in tenants.items() if tenant is None] == [Scope.ADMIN]


def test_scopes_add_up():
    key = JobKey("k", "t", frozenset({Scope.SUBMIT, Scope.READ}))
    assert [scope for scope in Scope if key.may(scope)] == [Scope.SUBMIT, Scope.READ]
    assert not any(JobKey("k", "t", frozenset()).may(scope) for scope in Scope)


def test_without_keys_everybody_may_everything_but_name_places():
    access = JobAccess()
    assert access.open
    assert access.check(None, Scope.ADMIN) is ANYONE
    assert ANYONE.sees is None
    with pytest.raises(ForbiddenError):
        ANYONE.inputs.require("s3://b/k", "input")
    own = JobKey("", "", frozenset({Scope.READ}))
    with pytest.raises(ForbiddenError, match="a request without an API key lacks the scope submit"):
        JobAccess(anyone=own).check(None, Scope.SUBMIT)


def test_keys_that_are_empty_open_nothing_to_those_who_come_without(access):
    assert not access.open
    with pytest.raises(UnauthenticatedError):
        access.check(None, Scope.READ)


@pytest.mark.parametrize(
    ("pending", "more", "fits"), [(0, 3, True), (2, 1, True), (3, 1, False), (1, 3, False)]
)
def test_a_tenant_has_room_for_so_many(access, pending, more, fits):
    key = access.check(f"Bearer {WEB}", Scope.SUBMIT)
    if fits:
        key.require_room(pending, more)
        return
    with pytest.raises(QueueFullError, match="at most 3") as raised:
        key.require_room(pending, more)
    assert raised.value.retry_after_s > 0


def test_a_payload_that_comes_along_is_bounded():
    key = JobKey("k", "t", frozenset(), inline_bytes_max=10)
    key.require_inline(10)
    with pytest.raises(LimitError, match="11 bytes; at most 10"):
        key.require_inline(11)


def test_headraces_own_places_are_nobodys():
    keys = parse_job_keys(FILE.replace("s3://shop/in", "s3://shop"), "f", reserved=["s3://shop/jobs"])
    key = keys[digest_of(WEB)]
    assert key.inputs.require("s3://shop/in/k", "input")
    with pytest.raises(ForbiddenError):
        key.inputs.require("s3://shop/jobs/results/k.out", "input")


GOOD = f'digest = "sha256:{"0" * 64}"\nscopes = ["read"]\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f.toml: there is no key in it; make one with: headrace keys new NAME"),
        ("[keys]", "no key in it"),
        ("keys = 1", "no key in it"),
        ("nonsense", "f.toml: it is no TOML"),
        (f"[key.web]\n{GOOD}", "f.toml: there is no 'key'; all keys stand in .keys.NAME."),
        ("[keys]\nweb = 1\n", "f.toml: .keys.web. must be a table"),
        (f"[keys.web]\n{GOOD}colour = 1", ".keys.web. has no 'colour' .it has 'digest', "),
        (f'[keys."a b"]\n{GOOD}', ".keys.a b.: a name has up to 64 letters"),
        ('[keys.web]\nscopes = ["read"]', ".keys.web. digest: a list of texts"),
        ('[keys.web]\nscopes = ["read"]\ndigest = []', "digest: one digest is needed, or 2"),
        (f'[keys.web]\nscopes = ["read"]\ndigest = {["a", "b", "c"]}', "digest: one digest is needed, or 2"),
        (f'[keys.web]\nscopes = ["read"]\ndigest = "{WEB}"', "digest: it must be sha256: and 64 digits"),
        ('[keys.web]\nscopes = ["read"]\ndigest = [1]', "digest: a list of texts"),
        (f"[keys.web]\n{GOOD}[keys.old]\n{GOOD}", ".keys.old. digest: the key of .keys.web. is this one too"),
        (
            f"[keys.web]\n{GOOD}".replace('"read"', ""),
            "scopes: some of 'admin', 'events', 'operate', 'read', 'submit'",
        ),
        (f"[keys.web]\n{GOOD}".replace('"read"', '"root"'), r"scopes: .* not \['root'\]"),
        (f"[keys.web]\n{GOOD}".replace('["read"]', '"read"'), "scopes: a list of texts"),
        (f'[keys.web]\ndigest = "sha256:{"0" * 64}"', "scopes: a list of texts"),
        (f"[keys.web]\n{GOOD}tenant = 1", "tenant: a name of letters"),
        (f'[keys.web]\n{GOOD}tenant = ""', "tenant: a name of letters"),
        (f'[keys.web]\n{GOOD}queues = "default"', "queues: a list of texts"),
        (f'[keys.web]\n{GOOD}models = [""]', "models: a list of texts"),
        (f'[keys.web]\n{GOOD}inputs = ["s3://Shop/in"]', "inputs: 's3://Shop/in': a bucket's name"),
        (f'[keys.web]\n{GOOD}inputs = ["data"]', "inputs: 'data': a file is named by its absolute path"),
        (f'[keys.web]\n{GOOD}outputs = ["https://h/x"]', "outputs: .*nothing is written to web addresses"),
        (f'[keys.web]\n{GOOD}outputs = ["ftp://h/x"]', "outputs: .*unknown scheme"),
        (f"[keys.web]\n{GOOD}pending_max = 0", "pending_max: a whole number from 1 is needed, not 0"),
        (f"[keys.web]\n{GOOD}pending_max = true", "pending_max: a whole number"),
        (f"[keys.web]\n{GOOD}inline_bytes_max = -1", "inline_bytes_max: a whole number from 0"),
        (f"[keys.web]\n{GOOD}inline_bytes_max = 1.5", "inline_bytes_max: a whole number"),
    ],
)
def test_mistakes_are_told_with_their_place_and_without_the_key(text, says):
    with pytest.raises(ConfigError, match=says) as raised:
        parse_job_keys(text, "f.toml")
    assert "f.toml" in str(raised.value)
    assert WEB not in str(raised.value)


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    st.lists(st.sampled_from(Scope), min_size=1),
    st.binary(min_size=32, max_size=32),
)
def test_the_lines_of_a_new_key_can_be_read(name, scopes, digest):
    (found,) = parse_job_keys(key_lines(name, digest, scopes=scopes), "f").items()
    assert found == (digest, JobKey(name, name, frozenset(scopes)))


@pytest.mark.parametrize(
    ("name", "tenant", "scopes"),
    [("", "", [Scope.READ]), ('a"]', "", [Scope.READ]), ("a", "b c", [Scope.READ]), ("a", "", [])],
)
def test_lines_that_could_not_be_read_are_not_made(name, tenant, scopes):
    with pytest.raises(ConfigError):
        key_lines(name, parse_digest("sha256:" + "0" * 64), tenant=tenant, scopes=scopes)
