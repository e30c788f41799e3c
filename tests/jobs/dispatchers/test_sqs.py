"""What a dispatcher makes in SQS, on `moto`, which imitates it."""

import itertools
import json

import pytest

from headrace.core.errors import ConfigError
from headrace.jobs.dispatchers.link import Announcement
from headrace.jobs.dispatchers.sqs import SqsBroker

pytestmark = pytest.mark.slow
_numbers = itertools.count()


@pytest.fixture
def queue() -> str:
    return f"door-{next(_numbers)}"


@pytest.fixture
def broker(moto_server) -> SqsBroker:
    return SqsBroker(environ=moto_server.environ)


@pytest.fixture
def link(broker, queue):
    link = broker.connect([queue])
    yield link
    link.close()


@pytest.fixture
def client(moto_server):
    client = moto_server.client("sqs")
    yield client
    client.close()


def test_a_queue_that_is_not_there_is_made_and_its_messages_do_not_stay_for_ever(link, client, queue):
    link.send([Announcement(queue, "job-0")])
    url = client.get_queue_url(QueueName=f"headrace-jobs-{queue}")["QueueUrl"]
    names = ["MessageRetentionPeriod"]
    told = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert told == {"MessageRetentionPeriod": "3600"}
    (message,) = client.receive_message(QueueUrl=url)["Messages"]
    assert json.loads(message["Body"]) == {"queue": queue, "job_id": "job-0"}


def test_a_queue_that_is_there_is_used_as_it_is(broker, client, queue):
    name = f"headrace-jobs-{queue}"
    url = client.create_queue(QueueName=name, Attributes={"MessageRetentionPeriod": "120"})["QueueUrl"]
    link = broker.connect([queue])
    link.send([Announcement(queue, str(number)) for number in range(25)])
    told = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (told["MessageRetentionPeriod"], told["ApproximateNumberOfMessages"]) == ("120", "25")
    link.close()


def test_what_is_taken_is_gone_and_what_was_handed_out_before_is_told(link, client, queue):
    link.send([Announcement(queue, str(number)) for number in range(3)])
    url = client.get_queue_url(QueueName=f"headrace-jobs-{queue}")["QueueUrl"]
    # Somebody received one, and died.
    client.receive_message(QueueUrl=url, MaxNumberOfMessages=1, VisibilityTimeout=0)
    taken = link.take(10, 1)
    assert (taken.messages, taken.redelivered) == (3, 1)
    told = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert told["ApproximateNumberOfMessages"] == told["ApproximateNumberOfMessagesNotVisible"] == "0"


@pytest.mark.parametrize("queue", ["", "a.b", "a b", "ä", "q" * 70])
def test_names_that_sqs_does_not_take_are_refused(broker, queue):
    with pytest.raises(ConfigError, match="SQS"):
        broker.require_queue(queue)


def test_settings_that_make_no_client_are_refused(moto_server):
    with pytest.raises(ConfigError, match="no client for SQS"):
        SqsBroker(environ={**moto_server.environ, "AWS_PROFILE": "no-such-profile"})


def test_a_region_that_is_given_goes_first(moto_server):
    environ = {name: value for name, value in moto_server.environ.items() if "ENDPOINT" not in name}
    assert SqsBroker(environ=environ, region="eu-central-1").name == (
        "sqs at https://sqs.eu-central-1.amazonaws.com"
    )
