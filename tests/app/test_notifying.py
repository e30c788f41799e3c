"""Who tells of jobs: SNS only where somebody is to be told by it, and without a region nobody is."""

from headrace.app.notifying import SnsWhenAsked
from headrace.jobs.notifier import Delivered, Notification, Refused, SnsTarget
from headrace.storage.resolve import Stores

TOLD = Notification(
    "evt_1", "job.completed", "job-1", 0, {"state": "completed", "output_uri": "memory://b/k"}
)


def test_without_credentials_or_a_region_it_is_refused_with_the_reason():
    with Stores() as stores:
        answer = SnsWhenAsked(stores, {"HOME": "/nonexistent"}).send(
            TOLD, SnsTarget("e", "arn:aws:sns:x:1:t")
        )
    assert isinstance(answer, Refused)


def test_topics_get_what_is_told_with_the_response(moto_server):
    topic = moto_server.client("sns").create_topic(Name="ends")["TopicArn"]
    with Stores() as stores:
        stores.for_uri("memory://b/k").put("memory://b/k", b"[1]")
        sns = SnsWhenAsked(stores, moto_server.environ)
        target = SnsTarget("e", topic, include_response=frozenset({"success"}))
        assert isinstance(sns.send(TOLD, target), Delivered)
        assert isinstance(sns.send(TOLD, target), Delivered)
