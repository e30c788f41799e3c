"""The lazy SNS notifier: delivery, and refusal without a region."""

from headrace.app.job_components import LazySnsNotifier
from headrace.jobs.notify import Delivered, Notification, Refused, SnsTarget
from headrace.storage.resolve import Stores

NOTIFICATION = Notification(
    "evt_1", "job.completed", "job-1", 0, {"state": "completed", "output_uri": "memory://b/k"}
)


def test_sns_without_region_refuses_the_notification():
    with Stores() as stores:
        result = LazySnsNotifier(stores, {"HOME": "/nonexistent"}).send(
            NOTIFICATION, SnsTarget("e", "arn:aws:sns:x:1:t")
        )
    assert isinstance(result, Refused)


def test_sns_delivers_notifications_with_responses(moto_server):
    topic = moto_server.client("sns").create_topic(Name="ends")["TopicArn"]
    with Stores() as stores:
        stores.for_uri("memory://b/k").put("memory://b/k", b"[1]")
        sns = LazySnsNotifier(stores, moto_server.environ)
        target = SnsTarget("e", topic, include_response=frozenset({"success"}))
        assert isinstance(sns.send(NOTIFICATION, target), Delivered)
        assert isinstance(sns.send(NOTIFICATION, target), Delivered)
