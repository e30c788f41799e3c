"""The boto3 adapter against moto's server: endpoints, and the classification of faults."""

import sys

import pytest

from cases import for_each
from headrace.core.errors import MissingExtraError
from headrace.jobs.aws import AwsFault, aws_client, aws_faults
from servers.receiver import Receiver, Reply, free_port

KEYS = {"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "word"}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch, tmp_path):
    """Hide the AWS settings of the machine that runs the tests."""
    for name in (
        "AWS_PROFILE",
        "AWS_DEFAULT_REGION",
        "AWS_REGION",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_client_uses_the_environments_endpoint(moto_server):
    for service, more in (
        ("sns", {}),
        ("sqs", {"AWS_ENDPOINT_URL_SQS": moto_server.endpoint, "AWS_ENDPOINT_URL": "http://no"}),
    ):
        client = aws_client(service, {**moto_server.environ, **more})
        assert client.meta.region_name == "us-east-1"
        assert client.meta.endpoint_url == moto_server.endpoint
        client.close()
    queues = aws_client("sqs", KEYS, endpoint_url=moto_server.endpoint)
    queues.create_queue(QueueName="of-test-aws")
    assert len(queues.list_queues(QueueNamePrefix="of-test-aws")["QueueUrls"]) == 1
    queues.close()


def test_service_errors_are_permanent(moto_server):
    client = aws_client("sns", moto_server.environ)
    with pytest.raises(AwsFault, match="NotFound") as fault, aws_faults():
        client.publish(TopicArn="arn:aws:sns:eu-west-1:123456789012:none", Message="x")
    assert (fault.value.transient, fault.value.throttled) == (False, False)
    client.close()


@for_each(
    ("status", "code", "passes", "throttled"),
    [
        (400, "Throttling", True, True),
        (503, "ServiceUnavailable", True, False),
        (403, "AccessDenied", False, False),
    ],
)
def test_faults_are_marked_transient(status, code, passes, throttled):
    body = f"<ErrorResponse><Error><Code>{code}</Code><Message>why</Message></Error></ErrorResponse>".encode()
    with Receiver() as receiver:
        receiver.reply = Reply(status, {"Content-Type": "text/xml"}, body)
        client = aws_client("sns", KEYS, endpoint_url=receiver.url)
        with pytest.raises(AwsFault) as fault, aws_faults():
            client.publish(TopicArn="arn:aws:sns:eu-west-1:123456789012:t", Message="x")
        client.close()
        assert (fault.value.code, fault.value.transient, fault.value.throttled) == (code, passes, throttled)
        # boto3 must not retry, because headrace schedules the retries.
        assert len(receiver.requests) == 1


def test_missing_connection_and_region_are_transient():
    client = aws_client("sns", KEYS, endpoint_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(AwsFault) as fault, aws_faults():
        client.list_topics()
    assert fault.value.transient
    client.close()
    with pytest.raises(AwsFault, match="NoRegionError"):
        aws_client("sns", {})


def test_missing_boto3_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "headrace.jobs.aws")
    with pytest.raises(MissingExtraError, match=r"headrace\[aws\]"):
        import headrace.jobs.aws  # noqa: F401
