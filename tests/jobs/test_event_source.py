"""Event notices from an SQS queue, with moto in place of SQS and S3."""

import itertools
import json
import threading
from concurrent.futures import Future

import pytest

from headrace.core.errors import ConfigError, DataError
from headrace.jobs import aws
from headrace.jobs.aws import SqsEventSource
from headrace.protocols.object_events import ObjectEvent
from headrace.testing import check_service

_numbers = itertools.count()
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr(aws, "POLL_S", 1.0)


@pytest.fixture(scope="module")
def sqs(moto_server):
    client = moto_server.client("sqs")
    yield client
    client.close()


@pytest.fixture
def queue_url(sqs) -> str:
    dead = _queue(sqs)
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    return _queue(sqs, RedrivePolicy=redrive, VisibilityTimeout="1")


def _queue(sqs, **attributes: str) -> str:
    return sqs.create_queue(QueueName=f"events-{next(_numbers)}", Attributes=attributes)["QueueUrl"]


def _notice(key: str) -> str:
    described = {"key": key, "size": 1, "eTag": "e"}
    record = {
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": "b"}, "object": described},
    }
    return json.dumps({"Records": [record]})


def _message_count(sqs, url: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(map(int, attributes.values()))


def test_event_source_is_a_service(moto_server, queue_url):
    check_service(lambda: SqsEventSource(queue_url, lambda _: None, environ=moto_server.environ))


def test_message_is_deleted_after_its_events_are_handled(moto_server, sqs, queue_url):
    seen: Future[tuple[ObjectEvent, int]] = Future()

    def handle(events) -> None:
        (event,) = events
        seen.set_result((event, _message_count(sqs, queue_url)))

    source = SqsEventSource(queue_url, handle, environ=moto_server.environ)
    source.start()
    sqs.send_message(QueueUrl=queue_url, MessageBody=_notice("a+b"))
    event, left = seen.result(30)
    source.stop()
    assert (event.uri, left) == ("s3://b/a b", 1)
    assert _message_count(sqs, queue_url) == 0


def test_bucket_notifications_are_received(moto_server, sqs, queue_url):
    s3 = moto_server.client("s3")
    bucket = f"bucket-{next(_numbers)}"
    s3.create_bucket(Bucket=bucket)
    arn = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    s3.put_bucket_notification_configuration(
        Bucket=bucket,
        NotificationConfiguration={
            "QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]
        },
    )
    s3.put_object(Bucket=bucket, Key="day 1/ä.csv", Body=b"123")
    s3.close()
    seen: list[ObjectEvent] = []
    source = SqsEventSource(queue_url, seen.extend, environ=moto_server.environ)
    while not seen:
        source.poll()
    assert (seen[0].uri, seen[0].size_bytes) == (f"s3://{bucket}/day 1/ä.csv", 3)


@pytest.mark.parametrize("poison", ["no notice", "refused", "raised"])
def test_unhandled_message_stays_in_the_queue_and_is_logged(poison, moto_server, sqs, queue_url, caplog):
    good = threading.Event()

    def handle(events) -> None:
        if events[0].key == "good":
            good.set()
        elif poison == "refused":
            raise DataError("no trigger matches")
        else:
            raise ZeroDivisionError("a defect")

    source = SqsEventSource(queue_url, handle, environ=moto_server.environ)
    body = "hello" if poison == "no notice" else _notice("bad")
    sqs.send_message(QueueUrl=queue_url, MessageBody=body)
    source.start()
    while _message_count(sqs, queue_url):
        pass  # the queue moves the message to its dead-letter queue after two receptions
    sqs.send_message(QueueUrl=queue_url, MessageBody=_notice("good"))
    assert good.wait(30)
    source.stop()
    logged = [record for record in caplog.records if "stays in the queue" in record.message]
    assert len(logged) == 2
    why = {"no notice": "not JSON", "refused": "no trigger matches", "raised": "a defect"}[poison]
    assert all(why in record.message for record in logged)
    assert [bool(record.exc_info) for record in logged] == [poison == "raised"] * 2
    assert "received 2 times" in logged[1].message


def test_notices_without_new_objects_are_deleted(moto_server, sqs, queue_url):
    calls: list[object] = []
    source = SqsEventSource(queue_url, calls.append, environ=moto_server.environ)
    sqs.send_message(QueueUrl=queue_url, MessageBody=json.dumps({"Event": "s3:TestEvent"}))
    assert source.poll() == 1
    assert (calls, _message_count(sqs, queue_url)) == ([], 0)


def test_missing_redrive_policy_is_logged_once(moto_server, sqs, caplog):
    source = SqsEventSource(_queue(sqs), lambda _: None, environ=moto_server.environ)
    source.poll()
    source.poll()
    assert [record.message.count("no redrive policy") for record in caplog.records] == [1]


def test_outage_is_survived_and_logged_at_start_and_end(moto_server, sqs, queue_url, caplog):
    seen = threading.Event()
    source = SqsEventSource(queue_url, lambda _: seen.set(), environ=moto_server.environ)
    moto_server.stop()
    try:
        source.start()
        while "is unavailable" not in caplog.text:
            pass
    finally:
        moto_server.start()
    # moto keeps no data: create the queue again under the same URL.
    assert _queue_again(sqs, queue_url) == queue_url
    sqs.send_message(QueueUrl=queue_url, MessageBody=_notice("k"))
    assert seen.wait(60)
    source.stop()
    assert [r.message for r in caplog.records if "retrying forever" in r.message][1:] == []
    assert "is available again" in caplog.text


def _queue_again(sqs, url: str) -> str:
    return sqs.create_queue(QueueName=url.rpartition("/")[2], Attributes={"VisibilityTimeout": "1"})[
        "QueueUrl"
    ]


def test_invalid_settings_are_refused(moto_server):
    with pytest.raises(ConfigError, match="not a URL"):
        SqsEventSource("my-queue", lambda _: None, environ=moto_server.environ)
