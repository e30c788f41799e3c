"""Region rules, their text and JSON forms, and bucket queries."""

import json
import logging
import sys
import threading

import pytest

from cases import for_each
from headrace.core.errors import AccessDeniedError, ConfigError
from headrace.storage.regions import (
    BUCKETS_MAX,
    UNKNOWN_REGION_TTL_S,
    RegionResolver,
    RegionRules,
    parse_region_rule,
)
from headrace.testing import ManualClock


class RecordingLookup:
    """A region lookup with scripted results. It records the bucket names."""

    def __init__(self, **regions):
        self.regions = regions
        self.names = []

    def __call__(self, name, environ, *, timeout_s):
        self.names.append(name)
        result = self.regions.get(name.replace("-", "_"))
        if isinstance(result, Exception):
            raise result
        return result


def test_longest_matching_prefix_wins():
    rules = RegionRules.parse(["s3://box/=a", "s3://box/eu/=b", "s3://box/eu/day-2=c", "gs://far=d"])
    for uri, region in (
        ("s3://box/x.csv", "a"),
        ("s3://box", "a"),
        ("s3://box/eu/x.csv", "b"),
        ("s3://box/eu/day-21/x.csv", "c"),
        ("S3://box/eu/", "b"),
        ("gs://far/x", "d"),
        ("s3://boxes/x", None),
        ("gs://farther/x", None),
        ("/box/x", None),
    ):
        assert rules.region(uri) == region, uri
    assert RegionRules().region("s3://box/x") is None


def test_files_and_memory_have_regions_only_by_rule(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rules = RegionRules.parse([f"{tmp_path}/near/=here", "far/=there", "memory://tests/=nowhere"])
    assert rules.region(f"file://{tmp_path}/near/x.csv") == "here"
    assert rules.region("near/x.csv") == "here"
    assert rules.region(str(tmp_path / "far" / "x")) == "there"
    assert rules.region("memory://tests/x") == "nowhere"
    regions = RegionResolver()
    assert (regions.resolve("/data/x"), regions.resolve("file:///data/x"), regions.resolve("memory://x")) == (
        None,
        None,
        None,
    )


def test_conflicting_rules_for_one_prefix_are_rejected():
    assert len(RegionRules.parse(["s3://box=a", "s3://box/=a"]).rules) == 2
    with pytest.raises(ConfigError, match="s3://box/ is in two regions, a and b"):
        RegionRules.parse(["s3://box=a", "s3://box/=b"])


@for_each(
    ("text", "message"),
    [
        ("s3://box/", "write PREFIX=REGION"),
        ("=eu-west-1", "write PREFIX=REGION"),
        ("s3://box/=", "write PREFIX=REGION"),
        ("s3://box/=eu west", "'eu west' is not a valid region"),
        ("s3://box/=" + "x" * 64, "up to 63 letters"),
        ("s3:///=eu", "region rule 's3:///=eu': s3:///: the bucket is missing"),
        ("ftp://box/=eu", "unknown scheme ftp"),
    ],
)
def test_invalid_rule_text_is_rejected(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_region_rule(text)


def test_rule_is_split_at_the_last_equals_sign():
    rule = parse_region_rule("s3://box/day=1/=eu-west-1")
    assert (rule.prefix, rule.region) == ("s3://box/day=1/", "eu-west-1")


def test_rules_round_trip_as_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rules = RegionRules.parse(["s3://box=a", "in/=b"], ask_buckets=False)
    monkeypatch.chdir("/")
    assert RegionRules.from_json(json.loads(json.dumps(rules.to_json()))) == rules


def test_known_bucket_is_queried_once_and_rules_take_precedence():
    lookup = RecordingLookup(box_eu="eu-west-1")
    regions = RegionResolver(RegionRules.parse(["s3://box-eu/here/=mine"]), lookup=lookup)
    assert [regions.resolve(f"s3://box-eu/{key}") for key in ("a", "b", "here/c")] == [
        "eu-west-1",
        "eu-west-1",
        "mine",
    ]
    assert lookup.names == ["box-eu"]
    assert regions.resolve("gs://box-eu/a") is None
    assert RegionResolver(RegionRules(ask_buckets=False), lookup=lookup).resolve("s3://box-eu/a") is None
    assert lookup.names == ["box-eu"]


def test_unknown_bucket_is_queried_again_after_its_ttl():
    lookup, clock = RecordingLookup(), ManualClock()
    regions = RegionResolver(lookup=lookup, clock=clock)
    for _ in range(3):
        assert regions.resolve("s3://box/x") is None
    clock.advance(UNKNOWN_REGION_TTL_S)
    lookup.regions["box"] = "eu-west-1"
    assert [regions.resolve("s3://box/x") for _ in range(3)] == ["eu-west-1"] * 3
    clock.advance(UNKNOWN_REGION_TTL_S * 2)
    assert regions.resolve("s3://box/x") == "eu-west-1"
    assert lookup.names == ["box", "box"]


@pytest.mark.parametrize("result", [AccessDeniedError("s3://box", "no"), OSError("gone"), "no region at all"])
def test_lookup_errors_are_logged_and_return_none(result, caplog):
    with caplog.at_level(logging.DEBUG, "headrace.storage.regions"):
        assert RegionResolver(lookup=RecordingLookup(box=result)).resolve("s3://box/x") is None
        assert RegionResolver().resolve("ftp://box/x") is None
        assert RegionResolver().resolve("") is None
    assert "region of s3://box unknown" in caplog.text
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


def test_cached_buckets_are_bounded():
    lookup = RecordingLookup()
    regions = RegionResolver(lookup=lookup)
    for number in range(BUCKETS_MAX + 1):
        regions.resolve(f"s3://box{number}/x")
    regions.resolve("s3://box1/x")
    assert len(lookup.names) == BUCKETS_MAX + 1
    regions.resolve("s3://box0/x")
    assert len(lookup.names) == BUCKETS_MAX + 2


def test_concurrent_resolves_query_once():
    lookup = RecordingLookup(box="eu-west-1")
    regions = RegionResolver(lookup=lookup)
    regions_found, barrier = [], threading.Barrier(4)

    def resolve():
        barrier.wait(10)
        regions_found.append(regions.resolve("s3://box/x"))

    threads = [threading.Thread(target=resolve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (regions_found, lookup.names) == (["eu-west-1"] * 4, ["box"])


def test_real_servers_report_regions_or_none(moto_server, s3_server, caplog):
    s3 = moto_server.client("s3")
    s3.create_bucket(Bucket="regions-us")
    s3.create_bucket(Bucket="regions-eu", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    regions = RegionResolver(environ=moto_server.environ)
    regions_found = [regions.resolve(f"s3://regions-{name}/x.csv") for name in ("us", "eu", "none")]
    assert regions_found == ["us-east-1", "eu-west-1", None]
    name = s3_server.bucket()
    assert RegionResolver(environ=s3_server.environ).resolve(f"s3://{name}/x") is None
    with caplog.at_level(logging.DEBUG, "headrace.storage.regions"):
        assert RegionResolver(environ=s3_server.denied_environ).resolve(f"s3://{name}/x") is None
    assert "Forbidden" in caplog.text


def test_without_boto3_regions_are_unknown(moto_server, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with caplog.at_level(logging.DEBUG, "headrace.storage.regions"):
        assert RegionResolver(environ=moto_server.environ).resolve("s3://regions-eu/x") is None
    assert "headrace[aws]" in caplog.text
