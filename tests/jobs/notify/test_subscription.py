"""Subscriptions to job events: valid and invalid entries, and the data of notifications."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError, HeadraceError, RefusedAddressError
from headrace.jobs.job import Job, JobFailure, JobProgress, NewJob, ResultRef
from headrace.jobs.notify import ENCRYPTED_PREFIX, EmailTarget, SnsTarget, WebhookTarget
from headrace.jobs.notify.subscription import (
    ENDS,
    SUBSCRIPTIONS_MAX,
    end_event_data,
    progress_event_data,
    read_subscriptions,
    wants_progress,
)
from headrace.jobs.outbound import OutboundPolicy
from headrace.jobs.state import Cause, JobState

SECRET = "whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
HOOK = {"webhook": "https://h.example/hook", "secret": SECRET}


def one(entry, policy=None):
    (found,) = read_subscriptions([entry], policy)
    return found


def test_each_kind_subscribes_to_all_ends_by_default():
    hook = one({**HOOK, "secret": SECRET, "events": ["failed", "progress"]})
    assert (hook.target.url, hook.target.secrets, hook.events) == (
        HOOK["webhook"], (SECRET,), {"failed", "progress"},
    )  # fmt: skip
    sns = one({"sns": {"success_topic": "arn:a", "include_response": ["success"]}})
    assert sns.target == SnsTarget(sns.receiver_id, "arn:a", "", frozenset({"success"}))
    for addresses in ("a@h.example", ["a@h.example"]):
        assert one({"email": addresses}).target.to == ("a@h.example",)
    assert isinstance(one(HOOK).target, WebhookTarget)
    assert isinstance(one({"email": "a@h.example"}).target, EmailTarget)
    named = one({"receiver": "billing"})
    assert (named.receiver_id, named.target, named.events) == ("billing", None, set(ENDS))


def test_receiver_id_does_not_depend_on_events():
    assert one(HOOK).receiver_id == one({**HOOK, "events": ["failed"]}).receiver_id
    assert one(HOOK).receiver_id != one({**HOOK, "secret": SECRET.replace("MDEy", "MDEz")}).receiver_id
    assert one(HOOK).receiver_id != one({**HOOK, "webhook": "https://h.example/other"}).receiver_id


def test_receiver_id_depends_on_the_tenant_except_for_receivers_of_the_operator():
    for entry in (HOOK, {"email": "a@h.example"}):
        ids = [
            found.receiver_id
            for tenant in ("", "alpha", "alpha", "beta")
            for found in read_subscriptions([entry], tenant=tenant)
        ]
        assert ids[1] == ids[2]
        assert len(set(ids)) == 3
    (named,) = read_subscriptions([{"receiver": "billing"}], tenant="alpha")
    assert (named.receiver_id, named.target) == ("billing", None)


def test_encrypted_secret_comes_from_the_ledger_only():
    hidden = {**HOOK, "secret": f"{ENCRYPTED_PREFIX}AAAA"}
    assert one(hidden).target.secrets == (hidden["secret"],)
    with pytest.raises(ConfigError, match="whsec_"):
        read_subscriptions([hidden], OutboundPolicy())


@for_each(
    ("entry", "why"),
    [
        ({}, "must have one of"),
        ({**HOOK, "email": "a@b.example"}, "must have one of"),
        ({**HOOK, "secrets": 1}, "unknown member 'secrets' beside 'webhook'"),
        ({"receiver": "e", "secret": SECRET}, "unknown member 'secret' beside 'receiver'"),
        ({"receiver": ""}, "receiver must be a string"),
        ({"webhook": 1}, "webhook must be a string"),
        ({**HOOK, "secret": 1}, "secret must be a string"),
        ({**HOOK, "secret": "x"}, "whsec_"),
        ({**HOOK, "format": "xml"}, "format must be one of"),
        ({**HOOK, "events": []}, "events must be a list"),
        ({**HOOK, "events": "failed"}, "events must be a list"),
        ({**HOOK, "events": ["done"]}, "unknown event 'done'"),
        ({"sns": "arn"}, "sns must be an object"),
        ({"sns": {}}, "needs a success_topic"),
        ({"sns": {"topic": "arn"}}, "unknown member 'topic' in sns"),
        ({"sns": {"success_topic": "arn", "include_response": ["all"]}}, "include_response"),
        ({"sns": {"success_topic": "arn", "include_response": [[]]}}, "include_response"),
        ({"sns": 1 << 64}, "sns must be an object"),  # more than JSON writers accept
        ({**HOOK, "format": [1]}, "format must be one of"),
        ({"email": []}, "email must be an address"),
        ({"email": ["a@h.example\r\nBcc: b@h.example"]}, "notify"),
    ],
)
def test_invalid_entry_is_refused_with_its_number(entry, why):
    with pytest.raises(ConfigError, match=why) as raised:
        read_subscriptions([{"receiver": "e"}, entry])
    assert "notify[1]" in str(raised.value)


def test_number_of_subscriptions_is_limited():
    with pytest.raises(ConfigError, match="at most"):
        read_subscriptions([HOOK] * (SUBSCRIPTIONS_MAX + 1))


@for_each("url", ["https://127.0.0.1/", "http://h.example/", "https://169.254.169.254/x"])
def test_forbidden_webhook_address_is_refused_at_submission(url):
    with pytest.raises((RefusedAddressError, ConfigError), match="not"):
        one({**HOOK, "webhook": url}, OutboundPolicy())


def test_unsigned_standard_webhook_is_refused_at_submission():
    """Such a webhook could never be sent. Entries that a ledger already has stay readable."""
    with pytest.raises(ConfigError, match="needs a secret"):
        one({"webhook": "https://h.example/"}, OutboundPolicy())
    assert one({"webhook": "https://h.example/"}).target.secrets == ()
    cloud = {"webhook": "https://h.example/", "format": "cloudevents-structured"}
    assert one(cloud, OutboundPolicy()).target.format == "cloudevents-structured"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.sampled_from(["webhook", "sns", "email", "receiver", "events", "secret", "format"])


@given(st.dictionaries(WORDS, JSON, max_size=4))
def test_any_entry_is_parsed_or_refused(entry):
    try:
        one(entry, OutboundPolicy())
    except HeadraceError:
        return


SPEC = NewJob(
    model="m", input_uri="https://h.example/in?signature=x", output_uri="s3://b/out/", correlation_id="c"
)


def test_end_data_has_uris_without_credentials():
    result = ResultRef("s3://own/x", 3, "text/csv", "s3://b/out/j.out")
    data = end_event_data(Job("j", JobState.COMPLETED, SPEC, result=result))
    assert (data["state"], data["output_uri"], data["output_bytes"]) == ("completed", "s3://b/out/j.out", 3)
    assert data["input_uri"] == "https://h.example/in"
    failed = Job("j", JobState.FAILED, SPEC, failure=JobFailure(Cause.INPUT, "bad row"))
    data = end_event_data(failed, "s3://b/out/j.error")
    assert (data["failure_uri"], data["reason"], data["cause"]) == ("s3://b/out/j.error", "bad row", "input")
    assert end_event_data(Job("j", JobState.CANCELLED, SPEC))["reason"] == "the job was cancelled"
    unpublished = JobFailure(Cause.STORAGE, "the result could not be published: full")
    data = end_event_data(Job("j", JobState.PUBLISH_FAILED, SPEC, result=result, failure=unpublished))
    assert (data["state"], data["reason"]) == ("publish_failed", unpublished.message)
    assert "output_uri" not in data


def test_internal_payload_is_not_in_the_data():
    job = Job("j", JobState.COMPLETED, NewJob(model="m", input_uri="s3://own/in", owned_input=True),
              result=ResultRef("s3://own/x"))  # fmt: skip
    assert not {"input_uri", "output_uri"} & end_event_data(job).keys()


def test_wants_progress_follows_the_events():
    assert wants_progress([HOOK, {**HOOK, "events": ["progress"]}])
    assert not wants_progress([HOOK])
    data = progress_event_data(Job("j", JobState.RUNNING, SPEC), JobProgress(1, 4, "records"))
    assert (data["done"], data["total"], data["unit"], data["state"]) == (1, 4, "records", "running")
