"""Queues and messages in SQS, imitated by `moto`."""

import itertools
import json

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.brokers.session import Announcement
from headrace.jobs.brokers.sqs import SqsBroker

pytestmark = pytest.mark.slow
_numbers = itertools.count()


@pytest.fixture
def queue() -> str:
    return f"queue-{next(_numbers)}"


@pytest.fixture
def broker(moto_server) -> SqsBroker:
    return SqsBroker(environ=moto_server.environ)


@pytest.fixture
def session(broker, queue):
    session = broker.connect([queue])
    yield session
    session.close()


@pytest.fixture
def client(moto_server):
    client = moto_server.client("sqs")
    yield client
    client.close()


def test_missing_queue_is_created_with_a_retention(session, client, queue):
    session.send([Announcement(queue, "job-0")])
    url = client.get_queue_url(QueueName=f"headrace-jobs-{queue}")["QueueUrl"]
    names = ["MessageRetentionPeriod"]
    attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert attributes == {"MessageRetentionPeriod": "3600"}
    (message,) = client.receive_message(QueueUrl=url)["Messages"]
    assert json.loads(message["Body"]) == {"queue": queue, "job_id": "job-0"}


def test_existing_queue_is_used_unchanged(broker, client, queue):
    name = f"headrace-jobs-{queue}"
    url = client.create_queue(QueueName=name, Attributes={"MessageRetentionPeriod": "120"})["QueueUrl"]
    session = broker.connect([queue])
    session.send([Announcement(queue, str(number)) for number in range(25)])
    attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (attributes["MessageRetentionPeriod"], attributes["ApproximateNumberOfMessages"]) == ("120", "25")
    session.close()


def test_received_messages_are_deleted_and_redeliveries_counted(session, client, queue):
    session.send([Announcement(queue, str(number)) for number in range(3)])
    url = client.get_queue_url(QueueName=f"headrace-jobs-{queue}")["QueueUrl"]
    # Another worker received one message and died.
    client.receive_message(QueueUrl=url, MaxNumberOfMessages=1, VisibilityTimeout=0)
    received = session.take(10, 1)
    assert (received.messages, received.redelivered) == (3, 1)
    attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (
        attributes["ApproximateNumberOfMessages"]
        == attributes["ApproximateNumberOfMessagesNotVisible"]
        == "0"
    )


@for_each("queue", ["", "a.b", "a b", "ä", "q" * 70])
def test_invalid_queue_names_are_refused(broker, queue):
    with pytest.raises(ConfigError, match="SQS"):
        broker.require_queue(queue)


def test_invalid_settings_are_refused(moto_server):
    with pytest.raises(ConfigError, match="no SQS client"):
        SqsBroker(environ={**moto_server.environ, "AWS_PROFILE": "no-such-profile"})


def test_given_region_overrides_the_environment(moto_server):
    environ = {name: value for name, value in moto_server.environ.items() if "ENDPOINT" not in name}
    assert SqsBroker(environ=environ, region="eu-central-1").name == (
        "sqs at https://sqs.eu-central-1.amazonaws.com"
    )
