"""Checks of notifications, and the selection of a notifier by the kind of target."""

import orjson
import pytest

from cases import for_each
from headrace.core.errors import ConfigError, LimitError
from headrace.jobs.notify import (
    DATA_BYTES_MAX,
    Delivered,
    EmailTarget,
    Notification,
    Notifiers,
    Refused,
    WebhookTarget,
)


@for_each(
    "change",
    [
        {"event_id": ""},
        {"event_id": "a.b"},
        {"event_id": "a b"},
        {"event_id": "a\r\nb"},
        {"event_id": "x" * 129},
        {"type": ""},
        {"type": "job-completed"},
        {"type": ".job"},
        {"type": "job..done"},
        {"type": "job\n"},
        {"type": "a" * 65},
        {"job_id": ""},
        {"job_id": "a\nb"},
        {"job_id": "x" * 257},
        {"data": {"when": object()}},
        {"data": {1: "a number for a name"}},
    ],
)
def test_invalid_notification_is_refused_at_once(change):
    with pytest.raises(ConfigError):
        Notification(**{"event_id": "evt_1", "type": "job.completed", "job_id": "j", "at_ms": 0, **change})


def test_data_has_a_limit():
    fits = DATA_BYTES_MAX - len(orjson.dumps({"job_id": "j", "x": ""}))
    assert len(Notification("e", "job.progress", "j", 0, {"x": "a" * fits}).data_json()) == DATA_BYTES_MAX
    with pytest.raises(LimitError, match="refer to large data by its URI"):
        Notification("e", "job.progress", "j", 0, {"x": "a" * (fits + 1)})


def test_targets_do_not_show_their_secrets():
    assert "hunter2" not in repr(WebhookTarget("e", "https://h/", ("hunter2",)))


def test_notifier_is_selected_by_target():
    class Taking:
        def send(self, notification, target):
            return Delivered(target.receiver_id)

    notifiers = Notifiers({WebhookTarget: Taking()})
    notification = Notification("e", "job.completed", "j", 0)
    assert notifiers.send(notification, WebhookTarget("hook", "https://h/")) == Delivered("hook")
    refused = notifiers.send(notification, EmailTarget("mail", ("a@b.example",)))
    assert isinstance(refused, Refused)
    assert "EmailTarget" in refused.why
