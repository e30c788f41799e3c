"""Whom a job tells: what a submission may say of it, and what somebody is then told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, HeadraceError, RefusedAddressError
from headrace.jobs.cause import Cause
from headrace.jobs.job import Job, JobFailure, NewJob, Progress, ResultRef
from headrace.jobs.notifier import EmailTarget, SnsTarget, WebhookTarget
from headrace.jobs.outbound.urls import OutboundPolicy
from headrace.jobs.state import JobState
from headrace.jobs.subscription import (
    ENDS,
    SUBSCRIPTIONS_MAX,
    read_subscriptions,
    told_of_end,
    told_of_progress,
    wants_progress,
)

SECRET = "whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
HOOK = {"webhook": "https://h.example/hook", "secret": SECRET}


def one(entry, policy=None):
    (found,) = read_subscriptions([entry], policy)
    return found


def test_each_kind_is_read_and_all_ends_are_told_unless_some_are_asked_for():
    hook = one({**HOOK, "secret": SECRET, "events": ["failed", "progress"]})
    assert (hook.target.url, hook.target.secrets, hook.events) == (
        HOOK["webhook"], (SECRET,), {"failed", "progress"},
    )  # fmt: skip
    sns = one({"sns": {"success_topic": "arn:a", "include_response": ["success"]}})
    assert sns.target == SnsTarget(sns.endpoint_id, "arn:a", "", frozenset({"success"}))
    for said in ("a@h.example", ["a@h.example"]):
        assert one({"email": said}).target.to == ("a@h.example",)
    assert isinstance(one(HOOK).target, WebhookTarget)
    assert isinstance(one({"email": "a@h.example"}).target, EmailTarget)
    named = one({"endpoint": "billing"})
    assert (named.endpoint_id, named.target, named.events) == ("billing", None, set(ENDS))


def test_one_target_has_one_id_whichever_events_are_asked_for():
    assert one(HOOK).endpoint_id == one({**HOOK, "events": ["failed"]}).endpoint_id
    assert one(HOOK).endpoint_id != one({**HOOK, "secret": SECRET.replace("MDEy", "MDEz")}).endpoint_id
    assert one(HOOK).endpoint_id != one({**HOOK, "webhook": "https://h.example/other"}).endpoint_id


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({}, "say one of"),
        ({**HOOK, "email": "a@b.example"}, "say one of"),
        ({**HOOK, "secrets": 1}, "no 'secrets' beside 'webhook'"),
        ({"endpoint": "e", "secret": SECRET}, "no 'secret' beside 'endpoint'"),
        ({"endpoint": ""}, "endpoint must be a text"),
        ({"webhook": 1}, "webhook must be a text"),
        ({**HOOK, "secret": 1}, "secret must be a text"),
        ({**HOOK, "secret": "x"}, "whsec_"),
        ({**HOOK, "format": "xml"}, "format must be one of"),
        ({**HOOK, "events": []}, "events must be a list"),
        ({**HOOK, "events": "failed"}, "events must be a list"),
        ({**HOOK, "events": ["done"]}, "no event 'done'"),
        ({"sns": "arn"}, "sns must be an object"),
        ({"sns": {}}, "needs a success_topic"),
        ({"sns": {"topic": "arn"}}, "no 'topic' in sns"),
        ({"sns": {"success_topic": "arn", "include_response": ["all"]}}, "include_response"),
        ({"email": []}, "email must be an address"),
        ({"email": ["a@h.example\r\nBcc: b@h.example"]}, "notify"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(entry, why):
    with pytest.raises(ConfigError, match=why) as told:
        read_subscriptions([{"endpoint": "e"}, entry])
    assert "notify[1]" in str(told.value)


def test_no_more_than_some_are_told():
    with pytest.raises(ConfigError, match="at most"):
        read_subscriptions([HOOK] * (SUBSCRIPTIONS_MAX + 1))


@pytest.mark.parametrize("url", ["https://127.0.0.1/", "http://h.example/", "https://169.254.169.254/x"])
def test_addresses_that_may_not_be_reached_are_refused_when_the_job_is_submitted(url):
    with pytest.raises((RefusedAddressError, ConfigError), match="not"):
        one({**HOOK, "webhook": url}, OutboundPolicy())


def test_a_standard_webhook_without_a_secret_is_refused_when_the_job_is_submitted():
    """It could never be sent. What is in a ledger already is read as it is."""
    with pytest.raises(ConfigError, match="is signed: give a secret"):
        one({"webhook": "https://h.example/"}, OutboundPolicy())
    assert one({"webhook": "https://h.example/"}).target.secrets == ()
    cloud = {"webhook": "https://h.example/", "format": "cloudevents-structured"}
    assert one(cloud, OutboundPolicy()).target.format == "cloudevents-structured"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.sampled_from(["webhook", "sns", "email", "endpoint", "events", "secret", "format"])


@given(st.dictionaries(WORDS, JSON, max_size=4))
def test_whatever_is_said_is_read_or_refused(entry):
    try:
        one(entry, OutboundPolicy())
    except HeadraceError:
        return


SPEC = NewJob(
    model="m", input_uri="https://h.example/in?signature=x", output_uri="s3://b/out/", correlation_id="c"
)


def test_what_is_told_of_an_end_says_where_it_is_and_opens_nothing():
    done = Job("j", JobState.COMPLETED, SPEC, result=ResultRef("s3://own/x", 3, "text/csv"))
    told = told_of_end(done, "s3://b/out/j.out")
    assert (told["state"], told["output_uri"], told["output_bytes"]) == ("completed", "s3://b/out/j.out", 3)
    assert told["input_uri"] == "https://h.example/in"
    failed = Job("j", JobState.FAILED, SPEC, failure=JobFailure(Cause.INPUT, "bad row"))
    told = told_of_end(failed, "s3://b/out/j.error")
    assert (told["failure_uri"], told["reason"], told["cause"]) == ("s3://b/out/j.error", "bad row", "input")
    assert told_of_end(Job("j", JobState.CANCELLED, SPEC))["reason"] == "the job was cancelled"


def test_payloads_of_ours_are_not_told():
    job = Job("j", JobState.COMPLETED, NewJob(model="m", input_uri="s3://own/in", owned_input=True),
              result=ResultRef("s3://own/x"))  # fmt: skip
    assert not {"input_uri", "output_uri"} & told_of_end(job).keys()


def test_progress_is_told_to_those_who_asked():
    assert wants_progress([HOOK, {**HOOK, "events": ["progress"]}])
    assert not wants_progress([HOOK])
    told = told_of_progress(Job("j", JobState.RUNNING, SPEC), Progress(1, 4, "records"))
    assert (told["done"], told["total"], told["unit"], told["state"]) == (1, 4, "records", "running")
