"""Where data lives: rules, their text and JSON, and buckets that are asked."""

import json
import logging
import sys
import threading

import pytest

from headrace.core.errors import AccessDeniedError, ConfigError
from headrace.storage.regions import BUCKETS_MAX, UNKNOWN_S, RegionRules, Regions, parse_region_rule
from headrace.testing import ManualClock


class Asked:
    """A server whose answers are known, with every question."""

    def __init__(self, **answers):
        self.answers = answers
        self.questions = []

    def __call__(self, name, environ, *, timeout_s):
        self.questions.append(name)
        answer = self.answers.get(name.replace("-", "_"))
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_the_longest_prefix_says():
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


def test_files_and_memory_have_one_where_a_rule_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rules = RegionRules.parse([f"{tmp_path}/near/=here", "far/=there", "memory://tests/=nowhere"])
    assert rules.region(f"file://{tmp_path}/near/x.csv") == "here"
    assert rules.region("near/x.csv") == "here"
    assert rules.region(str(tmp_path / "far" / "x")) == "there"
    assert rules.region("memory://tests/x") == "nowhere"
    regions = Regions()
    assert (regions.of("/data/x"), regions.of("file:///data/x"), regions.of("memory://x")) == (
        None,
        None,
        None,
    )


def test_rules_say_one_thing_of_one_prefix():
    assert len(RegionRules.parse(["s3://box=a", "s3://box/=a"]).rules) == 2
    with pytest.raises(ConfigError, match="s3://box/ is in two regions, a and b"):
        RegionRules.parse(["s3://box=a", "s3://box/=b"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("s3://box/", "write PREFIX=REGION"),
        ("=eu-west-1", "write PREFIX=REGION"),
        ("s3://box/=", "write PREFIX=REGION"),
        ("s3://box/=eu west", "'eu west' cannot be a region"),
        ("s3://box/=" + "x" * 64, "63 at most"),
        ("s3:///=eu", "the rule 's3:///=eu' for a region: s3:///: no bucket is named"),
        ("ftp://box/=eu", "unknown scheme ftp"),
    ],
)
def test_text_that_is_no_rule_is_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_region_rule(text)


def test_the_last_equals_sign_parts():
    rule = parse_region_rule("s3://box/day=1/=eu-west-1")
    assert (rule.prefix, rule.region) == ("s3://box/day=1/", "eu-west-1")


def test_rules_go_as_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rules = RegionRules.parse(["s3://box=a", "in/=b"], ask_buckets=False)
    monkeypatch.chdir("/")
    assert RegionRules.from_json(json.loads(json.dumps(rules.to_json()))) == rules


def test_buckets_are_asked_once_and_rules_go_first():
    asked = Asked(box_eu="eu-west-1")
    regions = Regions(RegionRules.parse(["s3://box-eu/here/=mine"]), ask=asked)
    assert [regions.of(f"s3://box-eu/{key}") for key in ("a", "b", "here/c")] == [
        "eu-west-1",
        "eu-west-1",
        "mine",
    ]
    assert asked.questions == ["box-eu"]
    assert regions.of("gs://box-eu/a") is None
    assert Regions(RegionRules(ask_buckets=False), ask=asked).of("s3://box-eu/a") is None
    assert asked.questions == ["box-eu"]


def test_a_bucket_that_does_not_say_is_asked_again_later():
    asked, clock = Asked(), ManualClock()
    regions = Regions(ask=asked, clock=clock)
    for _ in range(3):
        assert regions.of("s3://box/x") is None
    clock.advance(UNKNOWN_S)
    asked.answers["box"] = "eu-west-1"
    assert [regions.of("s3://box/x") for _ in range(3)] == ["eu-west-1"] * 3
    clock.advance(UNKNOWN_S * 2)
    assert regions.of("s3://box/x") == "eu-west-1"
    assert asked.questions == ["box", "box"]


@pytest.mark.parametrize("answer", [AccessDeniedError("s3://box", "no"), OSError("gone"), "no region at all"])
def test_nothing_that_goes_wrong_ends_a_run(answer, caplog):
    with caplog.at_level(logging.DEBUG, "headrace.storage.regions"):
        assert Regions(ask=Asked(box=answer)).of("s3://box/x") is None
        assert Regions().of("ftp://box/x") is None
        assert Regions().of("") is None
    assert "region of s3://box unknown" in caplog.text
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


def test_answers_that_are_kept_are_bounded():
    asked = Asked()
    regions = Regions(ask=asked)
    for number in range(BUCKETS_MAX + 1):
        regions.of(f"s3://box{number}/x")
    regions.of("s3://box1/x")
    assert len(asked.questions) == BUCKETS_MAX + 1
    regions.of("s3://box0/x")
    assert len(asked.questions) == BUCKETS_MAX + 2


def test_threads_that_ask_at_once_ask_once():
    asked = Asked(box="eu-west-1")
    regions = Regions(ask=asked)
    told, together = [], threading.Barrier(4)

    def look():
        together.wait(10)
        told.append(regions.of("s3://box/x"))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (told, asked.questions) == (["eu-west-1"] * 4, ["box"])


def test_servers_say_or_do_not(moto_server, s3_server, caplog):
    s3 = moto_server.client("s3")
    s3.create_bucket(Bucket="regions-us")
    s3.create_bucket(Bucket="regions-eu", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    regions = Regions(environ=moto_server.environ)
    told = [regions.of(f"s3://regions-{name}/x.csv") for name in ("us", "eu", "none")]
    assert told == ["us-east-1", "eu-west-1", None]
    name = s3_server.bucket()
    assert Regions(environ=s3_server.environ).of(f"s3://{name}/x") is None
    with caplog.at_level(logging.DEBUG, "headrace.storage.regions"):
        assert Regions(environ=s3_server.denied_environ).of(f"s3://{name}/x") is None
    assert "Forbidden" in caplog.text


def test_without_boto3_regions_are_unknown(moto_server, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with caplog.at_level(logging.DEBUG, "headrace.storage.regions"):
        assert Regions(environ=moto_server.environ).of("s3://regions-eu/x") is None
    assert "headrace[aws]" in caplog.text
