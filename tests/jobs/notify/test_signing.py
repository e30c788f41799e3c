"""Webhook secrets and signatures, checked with the reference library of Standard Webhooks."""

import base64
from datetime import UTC, datetime

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError, UnauthenticatedError
from headrace.jobs import notify

NOW_S = 1_700_000_000


def test_specification_test_vector():
    """Secret, id, time, body and signature are from the repository of Standard Webhooks."""
    key = notify.decode_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = notify.signed_headers(
        [key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_new_secrets_are_valid_and_distinct():
    made = {notify.make_secret() for _ in range(20)}
    assert len(made) == 20
    assert {len(notify.decode_secret(s)) for s in made} == {notify.SECRET_BYTES}


@for_each(
    "text",
    [
        "",
        "whsec_",
        "whsec_short",
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
        base64.b64encode(bytes(32)).decode(),
        "whsec_" + base64.b64encode(bytes(32)).decode().rstrip("="),
        "whsec_" + base64.b64encode(bytes(32)).decode() + "\n",
        "whsk_" + base64.b64encode(bytes(32)).decode(),
        "whsec_" + "ü" * 44,
    ],
)
def test_invalid_secret_is_refused_and_not_quoted(text):
    with pytest.raises(ConfigError) as error:
        notify.decode_secret(text)
    assert len(text) < 10 or text not in str(error.value)


@given(
    st.binary(max_size=200),
    st.binary(min_size=24, max_size=64),
    st.from_regex(r"[A-Za-z0-9_-]{1,40}", fullmatch=True),
)
def test_signed_message_verifies_and_a_changed_one_does_not(body, key, message_id):
    headers = notify.signed_headers([key], message_id, NOW_S, body)
    assert notify.verify([key], headers, body, now_s=NOW_S + 10) == message_id
    upper = {name.title(): value for name, value in headers.items()}
    assert notify.verify([bytes(24), key], upper, body, now_s=NOW_S) == message_id
    for wrong in (
        (headers, body + b"x", [key]),
        ({**headers, "webhook-id": message_id + "x"}, body, [key]),
        ({**headers, "webhook-timestamp": str(NOW_S + 1)}, body, [key]),
        (headers, body, [key + b"x"]),
        (headers, body, []),
    ):
        with pytest.raises(UnauthenticatedError):
            notify.verify(wrong[2], wrong[0], wrong[1], now_s=NOW_S)


def test_standards_library_verifies_our_signature():
    secret, body = notify.make_secret(), '{"data":"ü"}'.encode()
    now_s = int(datetime.now(UTC).timestamp())
    old = notify.decode_secret(notify.make_secret())
    headers = notify.signed_headers([notify.decode_secret(secret), old], "evt_1", now_s, body)
    assert standardwebhooks.Webhook(secret).verify(body, headers) == {"data": "ü"}
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(secret).verify(body + b" ", headers)


def test_signature_of_the_standards_library_verifies():
    secret, at = notify.make_secret(), datetime.fromtimestamp(NOW_S, UTC)
    signature = standardwebhooks.Webhook(secret).sign("evt_1", at, '{"a":1}')
    headers = {"webhook-id": "evt_1", "webhook-timestamp": str(NOW_S), "webhook-signature": signature}
    assert notify.verify([notify.decode_secret(secret)], headers, b'{"a":1}', now_s=NOW_S) == "evt_1"


@for_each(("off_s", "valid"), [(0, True), (299, True), (-299, True), (600, False), (-600, False)])
def test_timestamp_outside_of_the_tolerance_is_refused(off_s, valid):
    """A wrong clock of the receiver and a replayed message look the same."""
    key = notify.decode_secret(notify.make_secret())
    headers = notify.signed_headers([key], "evt_1", NOW_S, b"{}")
    if valid:
        assert notify.verify([key], headers, b"{}", now_s=NOW_S + off_s)
    else:
        with pytest.raises(UnauthenticatedError, match="a clock is wrong"):
            notify.verify([key], headers, b"{}", now_s=NOW_S + off_s)


def test_both_secrets_verify_during_a_change():
    old, new = (notify.decode_secret(notify.make_secret()) for _ in range(2))
    headers = notify.signed_headers([new, old], "evt_1", NOW_S, b"{}")
    assert len(headers["webhook-signature"].split(" ")) == 2
    for key in (old, new):
        assert notify.verify([key], headers, b"{}", now_s=NOW_S)


@for_each(
    "change",
    [
        {"webhook-id": ""},
        {"webhook-timestamp": ""},
        {"webhook-timestamp": "1e9"},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "9" * 5000},
        {"webhook-timestamp": "\u0661\u0662"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1a,AAAA"},
        {"webhook-signature": "v1,\u00fc\ud800"},
    ],
)
def test_malformed_headers_are_refused(change):
    key = notify.decode_secret(notify.make_secret())
    headers = {**notify.signed_headers([key], "evt_1", NOW_S, b"{}"), **change}
    with pytest.raises(UnauthenticatedError):
        notify.verify([key], headers, b"{}", now_s=NOW_S)


def test_number_of_checked_signatures_is_limited():
    key = notify.decode_secret(notify.make_secret())
    headers = notify.signed_headers([key], "evt_1", NOW_S, b"{}")
    headers["webhook-signature"] = "v1,AAAA " * notify.SIGNATURES_MAX + headers["webhook-signature"]
    with pytest.raises(UnauthenticatedError):
        notify.verify([key], headers, b"{}", now_s=NOW_S)
