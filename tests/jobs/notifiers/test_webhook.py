"""Webhooks to real receivers: formats, signatures, and what each answer means."""

import logging
import ssl
import time
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from urllib.parse import unquote

import orjson
import pytest
import standardwebhooks
import trustme
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.jobs.notifier import (
    DATA_BYTES_MAX,
    NOTIFICATION_BYTES_MAX,
    Delivered,
    Disabled,
    EmailTarget,
    Notification,
    Refused,
    Retry,
    WebhookTarget,
)
from headrace.jobs.notifiers.webhook import FORMATS, WebhookNotifier, encode, judge
from headrace.jobs.outbound.addresses import network
from headrace.jobs.outbound.client import OutboundAnswer, OutboundClient, OutboundTimeouts
from headrace.jobs.outbound.urls import OutboundPolicy
from headrace.jobs.secrets import make_secret
from servers.receiver import Receiver, Reply, free_port

SECRET = make_secret()
NOTIFICATION = Notification(
    "evt_1", "job.completed", "job-1", 1_700_000_000_123, {"output_uri": "s3://b/out", "n": "ü"}
)
QUICK = OutboundTimeouts(connect_s=0.5, read_s=0.3, total_s=0.6)


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def notifier(receiver):
    policy = OutboundPolicy(True, frozenset({receiver.port}), (network("127.0.0.1"),))
    with OutboundClient(policy, timeouts=QUICK) as client:
        yield WebhookNotifier(client)


def target(receiver, **more):
    return WebhookTarget("hook", receiver.url, **{"secrets": (SECRET,), **more})


def test_a_standard_webhook_is_what_the_standard_s_library_takes(receiver, notifier):
    assert notifier.send(NOTIFICATION, target(receiver)) == Delivered("HTTP 200")
    (request,) = receiver.requests
    body = standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)
    assert body == {
        "type": "job.completed",
        "timestamp": "2023-11-14T22:13:20.123Z",
        "data": {"job_id": "job-1", "output_uri": "s3://b/out", "n": "ü"},
    }
    assert (request.method, request.headers["webhook-id"]) == ("POST", "evt_1")
    assert request.headers["content-type"] == "application/json"


def test_the_id_stays_and_the_time_is_the_attempt_s(receiver):
    policy = OutboundPolicy(True, frozenset({receiver.port}), (network("127.0.0.1"),))
    now_s = iter([1_700_000_000.9, 1_700_000_000.9, 1_700_000_305.0, 1_700_000_305.0])
    with OutboundClient(policy) as client:
        notifier = WebhookNotifier(client, wall_s=lambda: next(now_s))
        for _ in range(2):
            notifier.send(NOTIFICATION, target(receiver))
    first, second = (r.headers for r in receiver.requests)
    assert first["webhook-id"] == second["webhook-id"] == "evt_1"
    assert (first["webhook-timestamp"], second["webhook-timestamp"]) == ("1700000000", "1700000305")
    assert first["webhook-signature"] != second["webhook-signature"]


def test_while_a_secret_is_changed_both_verify(receiver, notifier):
    old = make_secret()
    notifier.send(NOTIFICATION, target(receiver, secrets=(SECRET, old)))
    (request,) = receiver.requests
    for secret in (SECRET, old):
        assert standardwebhooks.Webhook(secret).verify(request.body, request.headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(make_secret()).verify(request.body, request.headers)


def test_a_structured_cloud_event(receiver, notifier):
    notifier.send(NOTIFICATION, target(receiver, format="cloudevents-structured"))
    (request,) = receiver.requests
    assert request.headers["content-type"] == "application/cloudevents+json; charset=UTF-8"
    assert standardwebhooks.Webhook(SECRET).verify(request.body, request.headers) == {
        "specversion": "1.0",
        "id": "evt_1",
        "source": "/headrace/jobs",
        "type": "job.completed",
        "subject": "job-1",
        "time": "2023-11-14T22:13:20.123Z",
        "datacontenttype": "application/json",
        "data": {"job_id": "job-1", "output_uri": "s3://b/out", "n": "ü"},
    }


def test_a_binary_cloud_event(receiver, notifier):
    odd = Notification("evt_1", "job.completed", 'jöb "1" 100%', 1_700_000_000_123, {"n": 1})
    notifier.send(odd, target(receiver, format="cloudevents-binary"))
    (request,) = receiver.requests
    attributes = {n: unquote(v) for n, v in request.headers.items() if n.startswith("ce-")}
    assert attributes == {
        "ce-specversion": "1.0",
        "ce-id": "evt_1",
        "ce-source": "/headrace/jobs",
        "ce-type": "job.completed",
        "ce-subject": 'jöb "1" 100%',
        "ce-time": "2023-11-14T22:13:20.123Z",
    }
    assert request.headers["ce-subject"] == "j%C3%B6b%20%221%22%20100%25"
    assert request.headers["content-type"] == "application/json"
    assert standardwebhooks.Webhook(SECRET).verify(request.body, request.headers) == {
        "job_id": odd.job_id,
        "n": 1,
    }


def test_cloud_events_need_no_secret_and_standard_webhooks_do(receiver, notifier):
    assert isinstance(notifier.send(NOTIFICATION, target(receiver, secrets=())), Refused)
    assert receiver.requests == []
    assert notifier.send(
        NOTIFICATION, target(receiver, secrets=(), format="cloudevents-binary")
    ) == Delivered("HTTP 200")
    assert "webhook-signature" not in receiver.requests[0].headers


@pytest.mark.parametrize(
    "change", [{"secrets": ("hunter2",)}, {"secrets": (SECRET,) * 5}, {"format": "soap"}]
)
def test_a_target_that_cannot_be_is_refused_without_its_secrets(receiver, notifier, change):
    answer = notifier.send(NOTIFICATION, target(receiver, **change))
    assert isinstance(answer, Refused)
    assert "hunter2" not in answer.why
    assert receiver.requests == []


@given(st.text(min_size=1, max_size=50).filter(str.isprintable), st.sampled_from(sorted(FORMATS)))
def test_every_notification_can_be_sent_in_every_format(job_id, format):
    try:
        notification = Notification("evt_1", "job.completed", job_id, 0, {"reason": job_id})
    except ConfigError:
        return  # lone surrogates
    body, headers = encode(notification, format, "/s")
    assert orjson.loads(body)
    assert all(v.isascii() and v.isprintable() for v in headers.values())


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_the_largest_notification_is_less_than_the_standard_s_bound(format):
    notification = Notification("e" * 128, "t" * 64, "j" * 256, 0, {"x": "a" * (DATA_BYTES_MAX - 300)})
    assert len(encode(notification, format, "/headrace/jobs")[0]) < NOTIFICATION_BYTES_MAX


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_delivered(status):
    assert judge(OutboundAnswer(status, {}, b"", whole=False), 0) == Delivered(f"HTTP {status}")


@pytest.mark.parametrize("status", [301, 302, 304, 307, 308, 400, 401, 403, 404, 405, 413, 422, 500, 501])
def test_everything_else_is_tried_again(receiver, notifier, status):
    receiver.reply = Reply(status, {"Location": f"{receiver.url}/other"})
    answer = notifier.send(NOTIFICATION, target(receiver))
    assert isinstance(answer, Retry)
    assert (f"HTTP {status}" in answer.why, answer.after_s, answer.throttled) == (True, None, False)
    assert len(receiver.requests) == 1


def test_410_disables(receiver, notifier):
    receiver.reply = Reply(410)
    assert isinstance(notifier.send(NOTIFICATION, target(receiver)), Disabled)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_receiver_with_too_much_to_do_is_left_alone_as_long_as_it_says(receiver, notifier, status):
    receiver.replies = [Reply(status, {"Retry-After": "120"}), Reply(status)]
    answer = notifier.send(NOTIFICATION, target(receiver))
    assert (answer.after_s, answer.throttled) == (120, True)
    assert notifier.send(NOTIFICATION, target(receiver)).after_s is None


def test_retry_after_may_be_a_date(receiver, notifier):
    receiver.reply = Reply(503, {"Retry-After": formatdate(time.time() + 100, usegmt=True)})
    assert 95 < notifier.send(NOTIFICATION, target(receiver)).after_s <= 100


# The bad receivers.


@pytest.mark.parametrize("reply", [Reply(never=True), Reply(drip_head_s=0.05), Reply(cut=True)])
def test_a_receiver_that_does_not_answer_is_tried_again(receiver, notifier, reply):
    receiver.reply = reply
    began_s = time.monotonic()
    assert isinstance(notifier.send(NOTIFICATION, target(receiver)), Retry)
    assert time.monotonic() - began_s < 2


@pytest.mark.parametrize("reply", [Reply(drip_s=0.05), Reply(endless=True, body=bytes(1 << 16))])
def test_a_receiver_whose_body_does_not_end_has_the_notification(receiver, notifier, reply):
    receiver.reply = reply
    assert notifier.send(NOTIFICATION, target(receiver)) == Delivered("HTTP 200")


def test_a_receiver_that_is_down_is_tried_again(notifier, receiver):
    with OutboundClient(
        OutboundPolicy(True, frozenset({port := free_port()}), (network("127.0.0.1"),))
    ) as client:
        down = WebhookTarget("hook", f"http://127.0.0.1:{port}/", (SECRET,))
        assert isinstance(WebhookNotifier(client).send(NOTIFICATION, down), Retry)


def test_a_receiver_with_an_expired_certificate_is_tried_again_until_it_has_a_new_one():
    ca, past = trustme.CA(), datetime.now(UTC) - timedelta(days=1)
    trust = ssl.create_default_context()
    ca.configure_trust(trust)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("hooks.example", not_before=past - timedelta(days=1), not_after=past).configure_cert(tls)
    with Receiver(tls=tls) as receiver:
        policy = OutboundPolicy(ports=frozenset({receiver.port}), networks=(network("127.0.0.1"),))
        with OutboundClient(policy, trust=trust, resolve=lambda host, port: ["127.0.0.1"]) as client:
            hook = WebhookTarget("hook", f"https://hooks.example:{receiver.port}/", (SECRET,))
            answer = WebhookNotifier(client).send(NOTIFICATION, hook)
            assert isinstance(answer, Retry)
            assert "certificate" in answer.why
            ca.issue_cert("hooks.example").configure_cert(tls)
            assert WebhookNotifier(client).send(NOTIFICATION, hook) == Delivered("HTTP 200")


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "https://10.0.0.1/", "gopher://x/", "file:///etc/passwd"]
)
def test_what_may_not_be_reached_is_refused(notifier, url):
    assert isinstance(notifier.send(NOTIFICATION, WebhookTarget("hook", url, (SECRET,))), Refused)


def test_what_a_receiver_says_goes_to_the_log_alone(receiver, notifier, caplog):
    receiver.reply = Reply(500, body=b"the inner secret" * 100)
    with caplog.at_level(logging.INFO, "headrace.jobs"):
        answer = notifier.send(NOTIFICATION, target(receiver))
    assert "inner secret" not in answer.why
    assert "the inner secret" in caplog.text
    assert SECRET not in caplog.text


def test_a_target_of_another_kind_is_refused(notifier):
    assert isinstance(notifier.send(NOTIFICATION, EmailTarget("mail", ("a@b.example",))), Refused)
