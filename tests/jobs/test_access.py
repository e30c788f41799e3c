"""API keys of jobs: permissions, the key file, and its error messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import (
    ConfigError,
    ForbiddenError,
    LimitError,
    QueueFullError,
    UnauthenticatedError,
)
from headrace.jobs.access import (
    ANONYMOUS_KEY,
    INLINE_BYTES_MAX_DEFAULT,
    PENDING_MAX_DEFAULT,
    Access,
    ApiKey,
    Scope,
    format_digest,
    hash_key,
    parse_digest,
)
from headrace.jobs.access.keys_file import key_lines, parse_keys
from headrace.jobs.paths import UriAllowList

WEB, WEB_NEW, OPS = "hr_web-0123456789", "hr_web-new-0123456789", "hr_ops-0123456789"
FILE = f"""
[keys.web]
digest = ["{format_digest(hash_key(WEB))}", "{format_digest(hash_key(WEB_NEW))}"]
tenant = "shop"
scopes = ["submit", "read"]
queues = ["default", "night"]
models = ["churn"]
inputs = ["s3://shop/in", "/data/shop"]
outputs = ["S3://shop/out/"]
pending_max = 3
inline_bytes_max = 0
requests_per_s_max = 50
bytes_per_day_max = 10_000_000

[keys."ops.eu"]
digest = "{format_digest(hash_key(OPS))}"
scopes = ["operate"]
"""


@pytest.fixture
def access() -> Access:
    return Access(parse_keys(FILE, "keys.toml"))


def test_key_has_the_permissions_of_its_table(access):
    key = access.check(f"Bearer {WEB}", Scope.SUBMIT)
    assert (key.name, key.tenant, key.visible_tenant) == ("web", "shop", "shop")
    assert (key.pending_max, key.inline_bytes_max) == (3, 0)
    assert (key.requests_per_s_max, key.bytes_per_day_max) == (50.0, 10_000_000)
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


def test_defaults_permit_every_name_and_no_uri(access):
    key = access.check(f"Bearer {OPS}", Scope.OPERATE)
    assert (key.name, key.tenant) == ("ops.eu", "ops.eu")
    assert (key.pending_max, key.inline_bytes_max) == (PENDING_MAX_DEFAULT, INLINE_BYTES_MAX_DEFAULT)
    key.require_queue("anything")
    key.require_model("anything")
    for allowed in (key.inputs, key.outputs):
        with pytest.raises(ForbiddenError):
            allowed.require("s3://shop/in/k", "input")
    with pytest.raises(ConfigError):
        key.inputs.require("/data/shop/k", "input")


def test_both_digests_of_a_replaced_key_are_valid(access):
    assert access.check(f"Bearer {WEB}", Scope.READ) == access.check(f"Bearer {WEB_NEW}", Scope.READ)


@given(st.one_of(st.none(), st.text(), st.text().map(lambda text: f"Bearer {text}")))
def test_other_keys_are_refused(header):
    with pytest.raises(UnauthenticatedError):
        Access(parse_keys(FILE, "keys.toml")).check(header, Scope.READ)


# The scopes that a key with a single scope has.
INCLUDED = {
    Scope.SUBMIT: {Scope.SUBMIT},
    Scope.READ: {Scope.READ},
    Scope.MONITOR: {Scope.MONITOR},
    Scope.OPERATE: {Scope.OPERATE, Scope.READ, Scope.MONITOR},
    Scope.ADMIN: set(Scope),
    Scope.EVENTS: {Scope.EVENTS},
    Scope.INFER: {Scope.INFER},
    Scope.MODELS: {Scope.MODELS, Scope.INFER},
}


@for_each("required", Scope)
@for_each("scope", Scope)
def test_each_scope_is_required_separately(scope, required):
    key = ApiKey("k", "t", frozenset({scope}))
    access = Access({hash_key(WEB): key})
    if required in INCLUDED[scope]:
        assert access.check(f"Bearer {WEB}", required) is key
    else:
        with pytest.raises(ForbiddenError, match=f"'k' lacks the required scope {required}"):
            access.check(f"Bearer {WEB}", required)
    assert key.visible_tenant == (None if Scope.OPERATE in INCLUDED[scope] else "t")
    assert key.counted_tenant == (None if Scope.MONITOR in INCLUDED[scope] else "t")


def test_one_of_several_scopes_suffices(access):
    assert access.check(f"Bearer {OPS}", Scope.SUBMIT, Scope.OPERATE).name == "ops.eu"
    with pytest.raises(ForbiddenError, match="lacks the required scope submit or admin"):
        access.check(f"Bearer {OPS}", Scope.SUBMIT, Scope.ADMIN)


def test_only_admins_delete_jobs_of_other_tenants():
    tenants = {scope: ApiKey("k", "t", frozenset({scope, Scope.SUBMIT})).deletable_tenant for scope in Scope}
    assert [scope for scope, tenant in tenants.items() if tenant is None] == [Scope.ADMIN]


def test_scopes_add_up():
    key = ApiKey("k", "t", frozenset({Scope.SUBMIT, Scope.READ}))
    assert [scope for scope in Scope if scope in key.granted] == [Scope.SUBMIT, Scope.READ]
    assert not ApiKey("k", "t", frozenset()).granted


def test_without_keys_clients_have_all_scopes_but_no_uris():
    access = Access()
    assert access.open
    assert access.check(None, Scope.ADMIN) is ANONYMOUS_KEY
    assert ANONYMOUS_KEY.visible_tenant is None
    with pytest.raises(ForbiddenError):
        ANONYMOUS_KEY.inputs.require("s3://b/k", "input")
    key = ApiKey("", "", frozenset({Scope.READ}))
    with pytest.raises(ForbiddenError, match="a request without an API key lacks the required scope submit"):
        Access(anonymous=key).check(None, Scope.SUBMIT)


BUCKET_FOLDER = UriAllowList.read(["s3://b/in/"])


@for_each(
    ("key", "uri", "message"),
    [
        (
            ApiKey("", "", frozenset(Scope)),
            "s3://b/day.csv",
            (
                "'s3://b/day.csv' is not permitted; permitted {role}s: none: start headrace up with "
                "--allow-{role} s3://b/, or add it to {role}s of [anyone] in its --config file"
            ),
        ),
        (
            ApiKey("", "", frozenset(Scope), inputs=BUCKET_FOLDER, outputs=BUCKET_FOLDER),
            "s3://b/a/b$(x)/c",
            (
                "'s3://b/a/b$(x)/c' is not permitted; permitted {role}s: 's3://b/in/': start "
                "headrace up with --allow-{role} PREFIX"
            ),
        ),
        (
            ApiKey("web", "shop", frozenset(Scope), inputs=BUCKET_FOLDER, outputs=BUCKET_FOLDER),
            "s3://b/out/",
            (
                "'s3://b/out/' is not permitted; permitted {role}s: 's3://b/in/': add s3://b/out/ "
                "to {role}s of [keys.web] in the server's --config file"
            ),
        ),
        (
            ApiKey("ops.eu", "shop", frozenset(Scope)),
            "s3://b/out/",
            'permitted {role}s: none: add s3://b/out/ to {role}s of [keys."ops.eu"] in the',
        ),
        (
            ApiKey("", "", frozenset(Scope), outputs=UriAllowList.read([], reserved=["s3://b/jobs"])),
            "https://h.example/x",
            "'https://h.example/x': web addresses are permitted only as inputs, below prefixes that",
        ),
    ],
)
def test_refused_location_names_the_setting_that_permits_it(key, uri, message):
    for role, require in (("input", key.require_input), ("output", key.require_output)):
        with pytest.raises((ForbiddenError, ConfigError)) as caught:
            require(uri)
        assert message.format(role=role) in str(caught.value)


def test_location_in_the_own_store_is_never_permitted():
    key = ApiKey("", "", frozenset(Scope), inputs=UriAllowList.read(["s3://b"], reserved=["s3://b/jobs"]))
    with pytest.raises(ForbiddenError, match="lies in headrace's own store"):
        key.require_input("s3://b/jobs/x")


def test_empty_key_does_not_admit_clients_without_a_key(access):
    assert not access.open
    with pytest.raises(UnauthenticatedError):
        access.check(None, Scope.READ)


@pytest.mark.parametrize(
    ("pending", "more", "fits"), [(0, 3, True), (2, 1, True), (3, 1, False), (1, 3, False)]
)
def test_tenant_has_a_quota(access, pending, more, fits):
    key = access.check(f"Bearer {WEB}", Scope.SUBMIT)
    if fits:
        key.require_quota(pending, more)
        return
    with pytest.raises(QueueFullError, match="exceed its limit of 3") as raised:
        key.require_quota(pending, more)
    assert raised.value.retry_after_s > 0


def test_inline_payload_has_a_limit():
    key = ApiKey("k", "t", frozenset(), inline_bytes_max=10)
    key.require_inline(10)
    with pytest.raises(LimitError, match="11 bytes exceeds the 10"):
        key.require_inline(11)


def test_headraces_own_store_cannot_be_named():
    keys = parse_keys(FILE.replace("s3://shop/in", "s3://shop"), "f", reserved=["s3://shop/jobs"])
    key = keys[hash_key(WEB)]
    assert key.inputs.require("s3://shop/in/k", "input")
    with pytest.raises(ForbiddenError):
        key.inputs.require("s3://shop/jobs/results/k.out", "input")


GOOD = f'digest = "sha256:{"0" * 64}"\nscopes = ["read"]\n'


@for_each(
    ("text", "says"),
    [
        ("", "f.toml: the file has no key; create one with: headrace keys new NAME"),
        ("[keys]", "the file has no key"),
        ("keys = 1", "the file has no key"),
        ("nonsense", "f.toml: invalid TOML"),
        (f"[key.web]\n{GOOD}", "f.toml: unknown 'key'; write all keys as .keys.NAME."),
        ("[keys]\nweb = 1\n", "f.toml: .keys.web. must be a table"),
        (
            f"[keys.web]\n{GOOD}colour = 1",
            ".keys.web. unknown setting 'colour' .known: 'bytes_per_day_max', 'digest', ",
        ),
        (f'[keys."a b"]\n{GOOD}', ".keys.a b.: must have up to 64 letters"),
        ('[keys.web]\nscopes = ["read"]', ".keys.web. digest: must be a list of strings"),
        ('[keys.web]\nscopes = ["read"]\ndigest = []', "digest: must be one digest, or 2"),
        (f'[keys.web]\nscopes = ["read"]\ndigest = {["a", "b", "c"]}', "digest: must be one digest, or 2"),
        (
            f'[keys.web]\nscopes = ["read"]\ndigest = "{WEB}"',
            "digest: must be sha256: and 64 hexadecimal digits",
        ),
        ('[keys.web]\nscopes = ["read"]\ndigest = [1]', "digest: must be a list of strings"),
        (f"[keys.web]\n{GOOD}[keys.old]\n{GOOD}", ".keys.old. digest: the same key as .keys.web."),
        (
            f"[keys.web]\n{GOOD}".replace('"read"', ""),
            (
                "scopes: must be some of 'admin', 'events', 'infer', 'models', 'monitor', 'operate', 'read', "
                "'submit'"
            ),
        ),
        (f"[keys.web]\n{GOOD}".replace('"read"', '"root"'), r"scopes: .* not \['root'\]"),
        (f"[keys.web]\n{GOOD}".replace('["read"]', '"read"'), "scopes: must be a list of strings"),
        (f'[keys.web]\ndigest = "sha256:{"0" * 64}"', "scopes: must be a list of strings"),
        (f"[keys.web]\n{GOOD}tenant = 1", "tenant: must be a name of letters"),
        (f'[keys.web]\n{GOOD}tenant = ""', "tenant: must be a name of letters"),
        (f'[keys.web]\n{GOOD}queues = "default"', "queues: must be a list of strings"),
        (f'[keys.web]\n{GOOD}models = [""]', "models: must be a list of strings"),
        (f'[keys.web]\n{GOOD}inputs = ["s3://Shop/in"]', "inputs: 's3://Shop/in': a bucket name"),
        (f'[keys.web]\n{GOOD}inputs = ["data"]', "inputs: 'data': a file needs an absolute path"),
        (f'[keys.web]\n{GOOD}outputs = ["https://h/x"]', "outputs: .*outputs cannot be web addresses"),
        (f'[keys.web]\n{GOOD}outputs = ["ftp://h/x"]', "outputs: .*unknown scheme"),
        (f"[keys.web]\n{GOOD}pending_max = 0", "pending_max: must be a whole number from 1, not 0"),
        (f"[keys.web]\n{GOOD}pending_max = true", "pending_max: must be a whole number"),
        (f"[keys.web]\n{GOOD}inline_bytes_max = -1", "inline_bytes_max: must be a whole number from 0"),
        (f"[keys.web]\n{GOOD}inline_bytes_max = 1.5", "inline_bytes_max: must be a whole number"),
        (f"[keys.web]\n{GOOD}requests_per_s_max = 0", "requests_per_s_max: must be a number above 0, not 0"),
        (f"[keys.web]\n{GOOD}requests_per_s_max = -0.5", "requests_per_s_max: must be a number above 0"),
        (f"[keys.web]\n{GOOD}requests_per_s_max = inf", "requests_per_s_max: must be a number above 0"),
        (f"[keys.web]\n{GOOD}requests_per_s_max = nan", "requests_per_s_max: must be a number above 0"),
        (f"[keys.web]\n{GOOD}requests_per_s_max = true", "requests_per_s_max: must be a number above 0"),
        (f'[keys.web]\n{GOOD}requests_per_s_max = "1/s"', "requests_per_s_max: must be a number above 0"),
        (
            f"[keys.web]\n{GOOD}bytes_per_day_max = 0",
            "bytes_per_day_max: must be a whole number from 1, not 0",
        ),
        (f"[keys.web]\n{GOOD}bytes_per_day_max = 1e9", "bytes_per_day_max: must be a whole number from 1"),
    ],
)
def test_errors_name_the_setting_and_not_the_key(text, says):
    with pytest.raises(ConfigError, match=says) as raised:
        parse_keys(text, "f.toml")
    assert "f.toml" in str(raised.value)
    assert WEB not in str(raised.value)


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    st.lists(st.sampled_from(Scope), min_size=1),
    st.binary(min_size=32, max_size=32),
)
def test_lines_of_a_new_key_can_be_parsed(name, scopes, digest):
    (found,) = parse_keys(key_lines(name, digest, scopes=scopes), "f").items()
    assert found == (digest, ApiKey(name, name, frozenset(scopes)))


@for_each(
    ("name", "tenant", "scopes"),
    [("", "", [Scope.READ]), ('a"]', "", [Scope.READ]), ("a", "b c", [Scope.READ]), ("a", "", [])],
)
def test_lines_for_invalid_names_are_refused(name, tenant, scopes):
    with pytest.raises(ConfigError):
        key_lines(name, parse_digest("sha256:" + "0" * 64), tenant=tenant, scopes=scopes)


def _with_endpoints(*names, scopes=(Scope.SUBMIT,)):
    return ApiKey("k", "t", frozenset(scopes), endpoints=frozenset(names) if names else None)


def test_key_with_endpoints_uses_no_other():
    one, two = _with_endpoints("a"), _with_endpoints("a", "b")
    assert (one.choose_endpoint(""), one.choose_endpoint("a"), two.choose_endpoint("b")) == ("a", "a", "b")
    with pytest.raises(ForbiddenError, match="may not use the endpoint 'c'; its endpoints: a, b"):
        two.choose_endpoint("c")
    with pytest.raises(ForbiddenError, match="must name an endpoint; its endpoints: a, b"):
        two.choose_endpoint("")
    with pytest.raises(ForbiddenError, match="may not use the endpoint 'b'"):
        _with_endpoints("a", scopes=(Scope.ADMIN,)).choose_endpoint("b")
    assert (one.sees_endpoint("a"), one.sees_endpoint("b")) == (True, False)


def test_key_without_endpoints_submits_directly():
    plain, operator = _with_endpoints(), _with_endpoints(scopes=(Scope.OPERATE,))
    assert (plain.choose_endpoint(""), operator.choose_endpoint(""), operator.choose_endpoint("a")) == (
        "",
        "",
        "a",
    )
    with pytest.raises(ForbiddenError, match=r"may not use the endpoint 'a'.*endpoints = \['a'\]"):
        plain.choose_endpoint("a")
    assert (plain.sees_endpoint("a"), operator.sees_endpoint("a")) == (False, True)


@for_each("kind", ["receiver", "endpoint", "sns", "email"])
def test_targets_of_the_operator_need_the_scope_operate(kind):
    entries = [{"webhook": "https://h.example/"}, {kind: "x"}]
    _with_endpoints(scopes=(Scope.OPERATE,)).require_targets(entries)
    _with_endpoints().require_targets(entries[:1])
    with pytest.raises(ForbiddenError, match=f"may not name the target '{kind}', only webhooks"):
        _with_endpoints().require_targets(entries)


@for_each(
    ("lines", "says"),
    [
        ("endpoints = []", "endpoints: must name an endpoint"),
        ("endpoints = 'a'", "endpoints: must be a list of strings"),
        ("endpoints = ['a']\nqueues = ['q']", "queues: cannot be set beside endpoints"),
        ("endpoints = ['a']\nmodels = ['m']", "models: cannot be set beside endpoints"),
        ("endpoints = ['a']\noutputs = ['s3://b']", "outputs: cannot be set beside endpoints"),
        ("endpoints = ['a']\nscopes = ['submit', 'infer']", "infer cannot be used beside endpoints"),
    ],
)
def test_endpoints_exclude_other_lists(lines, says):
    scopes = "" if "scopes" in lines else "scopes = ['submit']\n"
    text = f"[keys.k]\ndigest = '{format_digest(hash_key('hr_0123456789abcdef'))}'\n{scopes}{lines}"
    with pytest.raises(ConfigError) as refused:
        parse_keys(text, "f.toml")
    assert says in str(refused.value)
