"""Webhooks to real receivers: formats, signatures, and the result of each response."""

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

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.encryption import EncryptionKey
from headrace.jobs.notify import (
    DATA_BYTES_MAX,
    NOTIFICATION_BYTES_MAX,
    Delivered,
    Disabled,
    EmailTarget,
    Notification,
    Refused,
    RetryLater,
    WebhookTarget,
    make_secret,
)
from headrace.jobs.notify.notifiers import FORMATS, WebhookNotifier, encode_webhook, result_of_response
from headrace.jobs.outbound import OutboundPolicy, OutboundResponse, OutboundTimeouts, parse_network
from headrace.jobs.outbound.client import OutboundClient
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
    policy = OutboundPolicy(True, frozenset({receiver.port}), (parse_network("127.0.0.1"),))
    with OutboundClient(policy, timeouts=QUICK) as client:
        yield WebhookNotifier(client)


def target(receiver, **more):
    return WebhookTarget("hook", receiver.url, **{"secrets": (SECRET,), **more})


def test_encrypted_secret_signs_with_its_key(receiver, notifier):
    key, other = EncryptionKey([bytes(32)]), EncryptionKey([bytes([1]) * 32])
    hidden = target(receiver, secrets=(key.encrypt(SECRET, receiver.url),))
    for decrypt, why in ((None, "--encryption-key"), (other.decrypt, "decrypts it")):
        result = WebhookNotifier(notifier._client, decrypt=decrypt).send(NOTIFICATION, hidden)
        assert isinstance(result, RetryLater), "another process may have the key"
        assert why in result.why
    assert not receiver.requests
    sent = WebhookNotifier(notifier._client, decrypt=key.decrypt).send(NOTIFICATION, hidden)
    assert isinstance(sent, Delivered)
    (request,) = receiver.requests
    assert standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)


def test_standard_webhook_verifies_with_the_standards_library(receiver, notifier):
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


def test_id_stays_and_timestamp_is_the_attempts(receiver):
    policy = OutboundPolicy(True, frozenset({receiver.port}), (parse_network("127.0.0.1"),))
    now_s = iter([1_700_000_000.9, 1_700_000_000.9, 1_700_000_305.0, 1_700_000_305.0])
    with OutboundClient(policy) as client:
        notifier = WebhookNotifier(client, wall_s=lambda: next(now_s))
        for _ in range(2):
            notifier.send(NOTIFICATION, target(receiver))
    first, second = (r.headers for r in receiver.requests)
    assert first["webhook-id"] == second["webhook-id"] == "evt_1"
    assert (first["webhook-timestamp"], second["webhook-timestamp"]) == ("1700000000", "1700000305")
    assert first["webhook-signature"] != second["webhook-signature"]


def test_both_secrets_verify_during_a_change(receiver, notifier):
    old = make_secret()
    notifier.send(NOTIFICATION, target(receiver, secrets=(SECRET, old)))
    (request,) = receiver.requests
    for secret in (SECRET, old):
        assert standardwebhooks.Webhook(secret).verify(request.body, request.headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(make_secret()).verify(request.body, request.headers)


def test_structured_cloud_event(receiver, notifier):
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


def test_binary_cloud_event(receiver, notifier):
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


def test_only_standard_webhooks_need_a_secret(receiver, notifier):
    assert isinstance(notifier.send(NOTIFICATION, target(receiver, secrets=())), Refused)
    assert receiver.requests == []
    assert notifier.send(
        NOTIFICATION, target(receiver, secrets=(), format="cloudevents-binary")
    ) == Delivered("HTTP 200")
    assert "webhook-signature" not in receiver.requests[0].headers


@pytest.mark.parametrize(
    "change", [{"secrets": ("hunter2",)}, {"secrets": (SECRET,) * 5}, {"format": "soap"}]
)
def test_invalid_target_is_refused_without_its_secrets(receiver, notifier, change):
    answer = notifier.send(NOTIFICATION, target(receiver, **change))
    assert isinstance(answer, Refused)
    assert "hunter2" not in answer.why
    assert receiver.requests == []


@given(st.text(min_size=1, max_size=50).filter(str.isprintable), st.sampled_from(sorted(FORMATS)))
def test_every_notification_fits_every_format(job_id, format):
    try:
        notification = Notification("evt_1", "job.completed", job_id, 0, {"reason": job_id})
    except ConfigError:
        return  # lone surrogates
    body, headers = encode_webhook(notification, format, "/s")
    assert orjson.loads(body)
    assert all(v.isascii() and v.isprintable() for v in headers.values())


@for_each("format", sorted(FORMATS))
def test_largest_notification_is_below_the_standards_limit(format):
    notification = Notification("e" * 128, "t" * 64, "j" * 256, 0, {"x": "a" * (DATA_BYTES_MAX - 300)})
    assert len(encode_webhook(notification, format, "/headrace/jobs")[0]) < NOTIFICATION_BYTES_MAX


@for_each("status", [200, 201, 202, 204, 299])
def test_status_2xx_is_delivered(status):
    assert result_of_response(OutboundResponse(status, {}, b"", complete=False), 0) == Delivered(
        f"HTTP {status}"
    )


@pytest.mark.parametrize("status", [301, 302, 304, 307, 308, 400, 401, 403, 404, 405, 413, 422, 500, 501])
def test_other_statuses_are_retried(receiver, notifier, status):
    receiver.reply = Reply(status, {"Location": f"{receiver.url}/other"})
    answer = notifier.send(NOTIFICATION, target(receiver))
    assert isinstance(answer, RetryLater)
    assert (f"HTTP {status}" in answer.why, answer.after_s, answer.throttled) == (True, None, False)
    assert len(receiver.requests) == 1


def test_status_410_disables(receiver, notifier):
    receiver.reply = Reply(410)
    assert isinstance(notifier.send(NOTIFICATION, target(receiver)), Disabled)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_retry_after_sets_the_delay(receiver, notifier, status):
    receiver.replies = [Reply(status, {"Retry-After": "120"}), Reply(status)]
    answer = notifier.send(NOTIFICATION, target(receiver))
    assert (answer.after_s, answer.throttled) == (120, True)
    assert notifier.send(NOTIFICATION, target(receiver)).after_s is None


def test_retry_after_may_be_a_date(receiver, notifier):
    receiver.reply = Reply(503, {"Retry-After": formatdate(time.time() + 100, usegmt=True)})
    assert 95 < notifier.send(NOTIFICATION, target(receiver)).after_s <= 100


# Misbehaving receivers


@pytest.mark.parametrize("reply", [Reply(never=True), Reply(drip_head_s=0.05), Reply(cut=True)])
def test_silent_receiver_is_retried(receiver, notifier, reply):
    receiver.reply = reply
    began_s = time.monotonic()
    assert isinstance(notifier.send(NOTIFICATION, target(receiver)), RetryLater)
    assert time.monotonic() - began_s < 2


@pytest.mark.parametrize("reply", [Reply(drip_s=0.05), Reply(endless=True, body=bytes(1 << 16))])
def test_endless_response_body_is_delivered(receiver, notifier, reply):
    receiver.reply = reply
    assert notifier.send(NOTIFICATION, target(receiver)) == Delivered("HTTP 200")


def test_unreachable_receiver_is_retried(notifier, receiver):
    with OutboundClient(
        OutboundPolicy(True, frozenset({port := free_port()}), (parse_network("127.0.0.1"),))
    ) as client:
        down = WebhookTarget("hook", f"http://127.0.0.1:{port}/", (SECRET,))
        assert isinstance(WebhookNotifier(client).send(NOTIFICATION, down), RetryLater)


def test_expired_certificate_is_retried():
    ca, past = trustme.CA(), datetime.now(UTC) - timedelta(days=1)
    trust = ssl.create_default_context()
    ca.configure_trust(trust)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("hooks.example", not_before=past - timedelta(days=1), not_after=past).configure_cert(tls)
    with Receiver(tls=tls) as receiver:
        policy = OutboundPolicy(ports=frozenset({receiver.port}), networks=(parse_network("127.0.0.1"),))
        with OutboundClient(policy, trust=trust, resolve=lambda host, port: ["127.0.0.1"]) as client:
            hook = WebhookTarget("hook", f"https://hooks.example:{receiver.port}/", (SECRET,))
            answer = WebhookNotifier(client).send(NOTIFICATION, hook)
            assert isinstance(answer, RetryLater)
            assert "certificate" in answer.why
            ca.issue_cert("hooks.example").configure_cert(tls)
            assert WebhookNotifier(client).send(NOTIFICATION, hook) == Delivered("HTTP 200")


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "https://10.0.0.1/", "gopher://x/", "file:///etc/passwd"]
)
def test_forbidden_address_is_refused(notifier, url):
    assert isinstance(notifier.send(NOTIFICATION, WebhookTarget("hook", url, (SECRET,))), Refused)


def test_response_body_goes_to_the_log_only(receiver, notifier, caplog):
    receiver.reply = Reply(500, body=b"the inner secret" * 100)
    with caplog.at_level(logging.INFO, "headrace.jobs"):
        answer = notifier.send(NOTIFICATION, target(receiver))
    assert "inner secret" not in answer.why
    assert "the inner secret" in caplog.text
    assert SECRET not in caplog.text


def test_target_of_another_kind_is_refused(notifier):
    assert isinstance(notifier.send(NOTIFICATION, EmailTarget("mail", ("a@b.example",))), Refused)
