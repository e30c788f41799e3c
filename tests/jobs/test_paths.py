"""URIs in jobs: normalization, allow-lists, web addresses, and paths in headrace's store."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError, ForbiddenError, HeadraceError
from headrace.jobs.job import NewJob
from headrace.jobs.outbound import OutboundPolicy, parse_network
from headrace.jobs.paths import (
    KEY_NAME_BYTES_MAX,
    URI_CHARS_MAX,
    JobPaths,
    UriAllowList,
    distinct_name,
    file_name,
    is_below,
    normalize_file_path,
    normalize_uri,
    output_location,
    output_name,
    without_query,
)
from headrace.storage.uri import KEY_BYTES_MAX, object_location

JOB = "01939f00-1c1e-7e2a-9b0e-6d2a55d0a001"

# Addresses from attacks on other servers, and unsafe object names.
REFUSED = [
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:127.0.0.1]/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://127.1/",
    "http://[::]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "https://example.org/in.csv",
    "http://a@b@c/x",
    "http://ok.example#@evil.example/",
    "http://ok.example\\@evil.example/",
    "http://ok.example\r\nHost: evil/",
    "http://xn--e1awd7f.example/",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "gopher:x",
    "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "FILE:///etc/passwd",
    "/etc/passwd",
    "etc/passwd",
    "../../etc/passwd",
    "memory://b/k",
    "s3://bucket/../other",
    "s3://bucket/in/../../other/k",
    "s3://bucket/./k",
    "s3://bucket/in/%2e%2E/other",
    "s3://bucket/in/.%2e/other",
    "s3://bucket/in%2Fother",
    "s3://bucket/in%5c..%5cother",
    "s3://bucket/k%00.csv",
    "s3://bucket//k",
    "s3://bucket/a//k",
    "s3://bucket/a//",
    "s3:///k",
    "s3://",
    "s3:/bucket/k",
    "s3:bucket/k",
    "s3://Bucket/k",
    "s3://bu..cket/k",
    "s3://bucket:9000/k",
    "s3://user:secret@bucket/k",
    "s3://user:secret@evil@bucket/k",
    "s3://-bucket/k",
    "s3://b%75cket/k",
    "s3://bu cket/k",
    "s3:// bucket/k",
    "s3://BUCKET/k",
    "s3://bücket/k",
    "s3://bucket\\k",
    "s3://bucket/a\\..\\k",
    "s3://bucket/k?X-Amz-Credential=AKIA&X-Amz-Signature=secret",
    "s3://bucket/k#fragment",
    "s3://bucket/k\0",
    "s3://bucket/k\r\nx-amz-acl: public-read",
    "s3://bucket/\u202egpj.exe",
    "s3://bucket/a\u200bb",
    " s3://bucket/k",
    "s3://bucket/k ",
    "s3://bucket/\udcff",
    "s3://bucket/" + "k" * (KEY_BYTES_MAX + 1),
    "s3://bucket/" + "é" * (KEY_BYTES_MAX // 2 + 1),
    "s3://bucket/" + "a/" * URI_CHARS_MAX,
    "",
    "s3",
    "://bucket/k",
]


@pytest.mark.parametrize("uri", REFUSED, ids=lambda uri: repr(uri)[:60])
def test_forbidden_uri_is_refused_without_its_secrets(uri):
    with pytest.raises(ConfigError) as raised:
        normalize_uri(uri)
    message = str(raised.value)
    assert "secret" not in message
    assert message.isprintable()
    assert len(message) < 400
    with pytest.raises(ConfigError):
        UriAllowList(("s3://bucket/", "s3://other/")).require(uri, "input")


@for_each(
    ("uri", "spelling"),
    [
        ("s3://bucket/in/k.csv", "s3://bucket/in/k.csv"),
        ("S3://bucket/k", "s3://bucket/k"),
        ("gs://my_bucket.example/k", "gs://my_bucket.example/k"),
        ("az://$web/k", "az://$web/k"),
        ("s3://bucket", "s3://bucket/"),
        ("s3://bucket/in/", "s3://bucket/in/"),
        ("s3://bucket/a b/ c%20d", "s3://bucket/a b/ c%20d"),
        ("s3://bucket/.hidden/..two/a..b", "s3://bucket/.hidden/..two/a..b"),
        ("s3://bucket/tag=a:b@c/+(1)", "s3://bucket/tag=a:b@c/+(1)"),
        ("s3://bucket/" + "k" * KEY_BYTES_MAX, "s3://bucket/" + "k" * KEY_BYTES_MAX),
    ],
)
def test_permitted_uri_has_one_spelling(uri, spelling):
    assert normalize_uri(uri) == spelling


@given(st.one_of(st.text(), st.sampled_from(REFUSED), st.text().map(lambda key: f"s3://bucket/{key}")))
def test_normalized_uri_is_stable_and_valid_for_stores(uri):
    try:
        spelling = normalize_uri(uri)
    except ConfigError:
        return
    assert normalize_uri(spelling) == spelling
    if not spelling.endswith("/"):
        assert object_location(spelling).uri == spelling


_SEGMENT = st.text("ab.%2eE/\\ ~é", min_size=1, max_size=8)


@given(st.lists(_SEGMENT, min_size=1, max_size=5).map("/".join))
def test_key_cannot_escape_its_prefix(key):
    """A permitted URI stays below its prefix, even if a store decodes or resolves the key."""
    try:
        uri = UriAllowList.read(["s3://bucket/in"]).require(f"s3://bucket/in/{key}", "input")
    except HeadraceError:
        return
    rest = re.sub("%2e", ".", uri, flags=re.IGNORECASE).removeprefix("s3://bucket/").replace("\\", "/")
    depth = 0
    for segment in rest.removesuffix("/").split("/"):
        assert segment not in {"", ".", ".."}
        depth += 1
    assert depth >= 1
    assert uri.startswith("s3://bucket/in/")


@for_each(
    ("uri", "prefix", "expected"),
    [
        ("s3://b/in", "s3://b/in", True),
        ("s3://b/in/k", "s3://b/in", True),
        ("s3://b/in/k", "s3://b/in/", True),
        ("s3://b/in/", "s3://b/in", True),
        ("s3://b/in", "s3://b/in/", False),
        ("s3://b/inner", "s3://b/in", False),
        ("s3://b/inner/k", "s3://b/in", False),
        ("s3://b/", "s3://b/in", False),
        ("s3://b/k", "s3://b/", True),
        ("s3://bb/k", "s3://b/", False),
        ("gs://b/in/k", "s3://b/in", False),
    ],
)
def test_prefix_matches_whole_segments(uri, prefix, expected):
    assert is_below(uri, prefix) is expected


def test_uris_outside_of_the_list_are_forbidden():
    allowed = UriAllowList.read(["S3://bucket/in", "gs://other"])
    assert allowed.require("s3://bucket/in/k", "input") == "s3://bucket/in/k"
    assert allowed.require("gs://other/k", "input") == "gs://other/k"
    for uri in ("s3://bucket/inner/k", "s3://bucket/", "s3://other/k"):
        with pytest.raises(ForbiddenError, match=r"the input .* is not permitted; permitted inputs: "):
            allowed.require(uri, "input")
    with pytest.raises(ForbiddenError):
        UriAllowList().require("s3://bucket/in/k", "output")


def test_unicode_equivalents_are_two_keys():
    composed = unicodedata.normalize("NFC", "s3://bucket/é")
    parted = unicodedata.normalize("NFD", composed)
    assert composed != parted
    allowed = UriAllowList.read([composed])
    assert allowed.require(f"{composed}/k", "input")
    with pytest.raises(ForbiddenError):
        allowed.require(f"{parted}/k", "input")


def test_reserved_uris_are_forbidden_despite_the_allow_list():
    allowed = UriAllowList.read(["s3://bucket"], reserved=["s3://bucket/jobs"])
    assert allowed.require("s3://bucket/jobsearch/k", "input")
    for uri in ("s3://bucket/jobs", "s3://bucket/jobs/results/x.out", "S3://bucket/jobs/inputs/x"):
        with pytest.raises(ForbiddenError):
            allowed.require(uri, "input")
    local = UriAllowList.read(["/data"], reserved=["/data/jobs"])
    assert local.require("/data/in/k", "input")
    with pytest.raises(ForbiddenError):
        local.require("/data/jobs/inputs/k", "input")


def test_files_need_a_local_root():
    allowed = UriAllowList.read(["s3://bucket", "/data/in", "file:///models/"])
    assert allowed.require("/data/in/k.csv", "input") == "/data/in/k.csv"
    assert allowed.require("file:///data/in/k.csv", "input") == "/data/in/k.csv"
    assert allowed.require("file://localhost/models/x", "input") == "/models/x"
    assert allowed.require("s3://bucket/k", "input") == "s3://bucket/k"
    for uri in ("/data/inner/k", "/etc/passwd", "file:///data"):
        with pytest.raises(ForbiddenError):
            allowed.require(uri, "input")
    for uri in (
        "/data/in/../../etc/passwd",
        "/data/in//k",
        "data/in/k",
        "file://other/data/in/k",
        "/data/in/%2e%2e/k",
        "memory://b/k",
    ):
        with pytest.raises(ConfigError):
            allowed.require(uri, "input")


@for_each("uri", ["data", "./data", "/data/..", "//data"])
def test_local_root_is_an_absolute_path(uri):
    with pytest.raises(ConfigError):
        normalize_file_path(uri)
    with pytest.raises(ConfigError):
        UriAllowList.read([uri])


def test_bucket_uri_is_no_file_path():
    with pytest.raises(ConfigError):
        normalize_file_path("s3://b/k")


def located(output_uri, name):
    """Return the location of a job's objects by the name that the ledger assigned."""
    return output_location(NewJob(output_uri=output_uri, output_name=name))


def test_layout_of_the_store():
    assert JobPaths("s3://b/jobs").input(JOB) == f"s3://b/jobs/inputs/{JOB}"
    assert JobPaths("/var/jobs/").attempt(JOB, 3) == f"/var/jobs/attempts/{JOB}/3/"
    assert JobPaths("s3://b/jobs").attempt(JOB, 12) == f"s3://b/jobs/attempts/{JOB}/12/"
    assert located("s3://b/out/", "row-1") == "s3://b/out/row-1"
    assert located("s3://b/out", "row-1") == "s3://b/out/row-1"
    assert located("/var/jobs/results/", JOB) == f"/var/jobs/results/{JOB}"
    assert located("file:///var/jobs/results", JOB) == f"/var/jobs/results/{JOB}"


@for_each("name", ["", ".", "..", "a/b", "../x.out", "a\0", "x" * 200, "a b"])
def test_job_id_with_unsafe_characters_is_refused(name):
    with pytest.raises(ConfigError):
        JobPaths("s3://b/jobs").input(name)
    with pytest.raises(ConfigError):
        JobPaths("s3://b/jobs").attempt(name, 1)


def test_too_long_result_uri_is_refused():
    with pytest.raises(ConfigError, match="longer than"):
        located("s3://b/" + "k" * (KEY_BYTES_MAX - 3), "row")


@given(st.text(min_size=1, max_size=512))
def test_every_key_has_a_name_that_clients_may_use(key):
    name = file_name(key)
    assert "/" not in name
    assert len(name.encode()) <= KEY_NAME_BYTES_MAX
    location = located("s3://b/out", name)
    for suffix in (".out", ".out.failed", ".error"):
        assert normalize_uri(location + suffix) == f"s3://b/out/{name}{suffix}"
    # Keys with equal names are told apart.
    assert distinct_name(name, key) != distinct_name(name, f"{key}x")


@for_each(
    "key",
    [
        "row-1", "a.csv", "2026=11", "_x", "day 0.csv", "ö+ä", ".hidden", "-rf", "..", "k.out", "k.error",
        "a.", "a~b", "100%", " x ", "x" * 200,
    ],
)  # fmt: skip
def test_key_keeps_its_name(key):
    """Regression: the key `day 0.csv` was published as `day-0-csv~eecee….out`."""
    assert file_name(key) == key


@for_each(
    ("key", "name"),
    [("a/b", "a-b"), ("a\\b", "a-b"), ("a?b#c", "a-b-c"), ("%2E%2fx", "-2E-2fx"), ("\u202egpj", "-gpj")],
)
def test_characters_that_no_uri_may_have_become_dashes(key, name):
    assert file_name(key) == name


@for_each("key", ["x" * 201, "ö" * 101, JOB])
def test_long_key_and_job_id_are_distinct(key):
    assert re.fullmatch(r"[xö0-9a-f-]+~[0-9a-f]{16}", file_name(key))
    assert len(file_name(key).encode()) <= KEY_NAME_BYTES_MAX


def test_name_of_an_output_is_assigned_or_follows_from_the_key():
    assert output_name(NewJob(id=JOB)) == JOB
    assert output_name(NewJob(id=JOB, key="a/b")) == "a-b"
    assert output_name(NewJob(id=JOB, key="a/b", output_name="a-b~1")) == "a-b~1"


@for_each("key", ["", "\udcff"])
def test_empty_key_is_refused(key):
    with pytest.raises(ConfigError):
        file_name(key)


# Paths in headrace's own store

STORES = ["s3://bucket/jobs/", "s3://bucket/jobs", "/data/objects/", "memory://box/"]


@for_each("store_uri", STORES)
def test_paths_are_below_the_store_and_name_their_job(store_uri):
    paths = JobPaths(store_uri)
    for uri in (
        paths.input(JOB),
        paths.attempt(JOB, 3) + "result.out",
        paths.attempt(JOB, 3) + "a/b.out.failed",
    ):
        assert uri.startswith(store_uri)
        assert paths.job_id_of(uri) == JOB
    assert paths.lease_of(paths.attempt(JOB, 3) + "result.out") == 3
    assert paths.lease_of(paths.input(JOB)) is None
    assert paths.attempt(JOB, 3).startswith(paths.attempts(JOB))
    assert paths.attempts(JOB).startswith(paths.all_attempts)
    assert paths.input(JOB).startswith(paths.inputs)
    assert not paths.drafts.startswith((paths.inputs, paths.all_attempts))


@given(
    job_id=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_=-]{0,40}", fullmatch=True), lease=st.integers(0, 10**17)
)
def test_job_id_and_lease_are_parsed_from_a_path(job_id, lease):
    paths = JobPaths("s3://bucket/jobs/")
    uri = paths.attempt(job_id, lease) + "result.out"
    assert (paths.job_id_of(uri), paths.lease_of(uri)) == (job_id, lease)
    assert paths.job_id_of(paths.input(job_id)) == job_id


@for_each(
    "name",
    [
        "",
        "inputs/",
        f"inputs/{JOB}/",
        f"inputs/{JOB}/deeper",
        "inputs/.hidden",
        "inputs/a b",
        f"input/{JOB}",
        f"attempts/{JOB}",
        f"attempts/{JOB}/",
        f"attempts/{JOB}/1",
        f"attempts/{JOB}/1/",
        f"attempts/{JOB}/01/x",
        f"attempts/{JOB}/-1/x",
        f"attempts/{JOB}/\u0661/x",
        f"attempts/{JOB}/{10**30}/x",
        f"attempts/{JOB}/x/1",
        f"attempts//1/{JOB}",
        f"attempts/{JOB}.//x",
        f"results/{JOB}.out",
    ],
)
def test_foreign_names_have_no_job(name):
    paths = JobPaths("s3://bucket/jobs/")
    assert paths.job_id_of(f"s3://bucket/jobs/{name}") is None
    assert paths.lease_of(f"s3://bucket/jobs/{name}") is None


def test_store_with_a_common_name_prefix_is_foreign():
    paths = JobPaths("s3://bucket/jobs")
    assert paths.job_id_of(f"s3://bucket/jobs2/inputs/{JOB}") is None
    assert paths.job_id_of(f"s3://bucket/inputs/{JOB}") is None


@for_each("job_id", ["../x", "", "a/b", ".."])
def test_job_id_outside_of_the_store_is_refused(job_id):
    paths = JobPaths("s3://ours/")
    for make in (paths.input, paths.attempts, lambda name: paths.attempt(name, 1)):
        with pytest.raises(ConfigError):
            make(job_id)


# Web addresses

WEB = UriAllowList.read(
    ["https://data.example.com/daily", "HTTPS://Other.Example.com", "s3://b/in"], policy=OutboundPolicy()
)
ANYWHERE = UriAllowList.read(["https://"], policy=OutboundPolicy())
REFUSED_ADDRESSES = [
    "https://169.254.169.254/latest/meta-data/",
    "https://[::ffff:127.0.0.1]/",
    "https://0x7f000001/",
    "https://2130706433/",
    "https://127.1/",
    "https://[::]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://user@host.example/",
    "https://a@b@host.example/",
    "https://host.example/#@127.0.0.1",
    "https://host.example\\@127.0.0.1/",
    "https://host.example\r\nHost: x/",
    "https://host\u3002example/",
    "https://host.example:22/",
    "http://host.example/",
    "gopher://host.example/",
    "file:///etc/passwd",
    "https://host.example/in/../secret",
    "https://host.example/in/%2e%2e/secret",
    "https://host.example/in/..;x/secret",
    "https://host.example/in/%2e.%3bx/secret",
    "https://host.example/in//k",
    "https://host.example/in%2f..%2fsecret",
    " https://host.example/",
    "https://" + "h" * 3000,
]


@for_each(
    ("uri", "normalized"),
    [
        ("https://data.example.com/daily/a.csv", "https://data.example.com/daily/a.csv"),
        ("HTTPS://DATA.example.com:443/daily/A", "https://data.example.com/daily/A"),
        ("https://data.example.com/daily", "https://data.example.com/daily"),
        ("https://data.example.com/daily/a?sig=x/../y", "https://data.example.com/daily/a?sig=x/../y"),
        ("https://other.example.com", "https://other.example.com/"),
        ("s3://b/in/k", "s3://b/in/k"),
    ],
)
def test_addresses_below_a_prefix_are_permitted(uri, normalized):
    assert WEB.require(uri, "input") == normalized


@for_each(
    "uri",
    [
        "https://data.example.com/dailyx/a",
        "https://data.example.com/",
        "https://data.example.com/%64aily/a",
        "https://data.example.com.evil.example/daily/a",
        "https://data.example.com:8443/daily/a",
        "https://evil.example/?https://data.example.com/daily/",
    ],
)
def test_other_addresses_are_forbidden(uri):
    with pytest.raises(ForbiddenError, match="is not permitted; permitted inputs: "):
        WEB.require(uri, "input")


@for_each("uri", REFUSED_ADDRESSES)
def test_unsafe_addresses_are_refused_despite_the_allow_list(uri):
    with pytest.raises(ConfigError):
        ANYWHERE.require(uri, "input")


def test_plain_http_and_private_networks_need_the_operator():
    policy = OutboundPolicy(plain_http=True, ports=frozenset({8000}), networks=(parse_network("10.0.0.0/8"),))
    allowed = UriAllowList.read(["http://10.1.2.3:8000/in", "https://"], policy=policy)
    assert allowed.require("http://10.1.2.3:8000/in/k", "input") == "http://10.1.2.3:8000/in/k"
    with pytest.raises(ForbiddenError):
        allowed.require("http://10.1.2.3:8000/other", "input")
    with pytest.raises(ConfigError, match="plain http"):
        UriAllowList.read(["http://"], policy=OutboundPolicy())


@for_each("uri", ["https://10.0.0.1/", "https://h.example/?q", "https://h.example/a/../b"])
def test_invalid_prefix_is_refused(uri):
    with pytest.raises(ConfigError):
        UriAllowList.read([uri], policy=OutboundPolicy())


def test_addresses_cannot_be_outputs():
    with pytest.raises(ConfigError, match="outputs cannot be web addresses"):
        UriAllowList.read(["https://"])


def test_displayed_address_has_no_query():
    assert without_query("https://h.example/k?signature=x") == "https://h.example/k"
    assert without_query("s3://b/what?") == "s3://b/what?"
