"""SNS on moto's server. A queue that subscribes to the topic receives the messages."""

import base64
from dataclasses import replace

import orjson
import pytest

from cases import for_each
from headrace.core.errors import NotFoundError
from headrace.jobs.aws import SNS_RESPONSE_BYTES_MAX, SnsNotifier, aws_client, encode_sns_message
from headrace.jobs.notify import Delivered, Notification, Refused, RetryLater, SnsTarget, WebhookTarget
from servers.receiver import Receiver, Reply, free_port

DATA = {
    "input_uri": "s3://in/a.csv",
    "output_uri": "s3://out/a.out",
    "failure_uri": "s3://out/a.error",
    "content_type": "text/csv",
    "output_content_type": "application/json",
    "model": "churn",
    "inference_id": "inf-7",
    "submitted_at_ms": 1_700_000_000_000,
    "reason": "row 3 has no label",
}
COMPLETED = Notification("evt_1", "job.completed", "job-1", 1_700_000_060_123, DATA)
FAILED = Notification("evt_2", "job.failed", "job-1", 1_700_000_060_123, DATA)


@pytest.fixture
def sns(moto_server):
    client = aws_client("sns", moto_server.environ)
    yield client
    client.close()


@pytest.fixture
def listener(moto_server, sns):
    """Return an object that creates topics with a queue each, and reads the messages."""
    sqs = aws_client("sqs", moto_server.environ)

    class Listener:
        def topic(self, name):
            ordered = {"FifoTopic": "true"} if name.endswith(".fifo") else {}
            queue_ordered = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
            arn = sns.create_topic(Name=name, Attributes=ordered)["TopicArn"]
            self.url = sqs.create_queue(QueueName=name, Attributes=queue_ordered)["QueueUrl"]
            queue = sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])
            queue_arn = queue["Attributes"]["QueueArn"]
            sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue_arn)
            return arn

        def messages(self):
            got = sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10).get("Messages", [])
            return [orjson.loads(orjson.loads(m["Body"])["Message"]) for m in got]

    yield Listener()
    sqs.close()


@pytest.fixture
def notifier(sns):
    return SnsNotifier(
        sns, region="eu-west-1", read_response=lambda uri, bytes_max: b"read from " + uri.encode()
    )


def test_success_message_has_sagemakers_format(listener, notifier):
    arn = listener.topic("success")
    answer = notifier.send(COMPLETED, SnsTarget("t", success_topic=arn))
    assert isinstance(answer, Delivered)
    assert answer.how.startswith("SNS message ")
    assert listener.messages() == [
        {
            "awsRegion": "eu-west-1",
            "eventTime": "2023-11-14T22:14:20.123Z",
            "receivedTime": "2023-11-14T22:13:20.000Z",
            "invocationStatus": "Completed",
            "requestParameters": {
                "contentType": "text/csv",
                "endpointName": "churn",
                "inputLocation": "s3://in/a.csv",
            },
            "responseParameters": {"contentType": "application/json", "outputLocation": "s3://out/a.out"},
            "inferenceId": "inf-7",
            "eventVersion": "1.0",
            "eventSource": "aws:sagemaker",
            "eventName": "InferenceResult",
        }
    ]


@pytest.mark.parametrize("event", ["job.failed", "job.publish_failed"])
def test_failure_message_has_its_reason(listener, notifier, event):
    arn = listener.topic("error")
    failed = replace(FAILED, type=event)
    notifier.send(failed, SnsTarget("t", success_topic="arn:other", error_topic=arn))
    (message,) = listener.messages()
    assert (message["invocationStatus"], message["failureReason"]) == ("Failed", "row 3 has no label")
    assert "responseParameters" not in message


@for_each("type", ["job.expired", "job.cancelled"])
def test_other_ends_are_failures_with_their_event_type(type):
    message = encode_sns_message(Notification("e", type, "job-1", 0), "r")
    assert (message["invocationStatus"], message["failureReason"]) == ("Failed", type)
    assert message["inferenceId"] == "job-1"


@pytest.mark.parametrize("name", ["included", "included.fifo"])
def test_response_is_included_on_request(listener, notifier, name):
    arn = listener.topic(name)
    target = SnsTarget("t", arn, arn, frozenset({"success"}))
    notifier.send(COMPLETED, target)
    notifier.send(FAILED, target)
    bodies = {m["invocationStatus"]: m.get("responseBody") for m in listener.messages()}
    content = base64.b64encode(b"read from s3://out/a.out").decode()
    assert bodies == {"Completed": {"encoding": "base64", "content": content}, "Failed": None}


@pytest.mark.parametrize("size", [SNS_RESPONSE_BYTES_MAX, SNS_RESPONSE_BYTES_MAX + 1])
def test_too_large_response_is_left_out(listener, sns, size):
    arn = listener.topic(f"sized-{size}")
    notifier = SnsNotifier(sns, region="r", read_response=lambda uri, bytes_max: bytes(size))
    assert isinstance(notifier.send(COMPLETED, SnsTarget("t", arn, "", frozenset({"success"}))), Delivered)
    (message,) = listener.messages()
    assert ("responseBody" in message) == (size <= SNS_RESPONSE_BYTES_MAX)


def test_unreadable_response_is_left_out(listener, sns):
    def gone(uri, bytes_max):
        raise NotFoundError(uri, "no such object")

    arn = listener.topic("gone")
    SnsNotifier(sns, region="r", read_response=gone).send(
        COMPLETED, SnsTarget("t", arn, "", frozenset({"success"}))
    )
    (message,) = listener.messages()
    assert "responseBody" not in message


def test_without_a_topic_nothing_is_sent(notifier):
    target = SnsTarget("t", success_topic="arn:x")
    assert "nothing to send" in notifier.send(FAILED, target).how
    assert "nothing to send" in notifier.send(Notification("e", "job.progress", "j", 0), target).how


def test_missing_topic_is_retried(notifier):
    answer = notifier.send(COMPLETED, SnsTarget("t", "arn:aws:sns:eu-west-1:123456789012:none"))
    assert isinstance(answer, RetryLater)
    assert "NotFound" in answer.why


@pytest.mark.parametrize(
    ("code", "kind"), [("InvalidParameter", Refused), ("AuthorizationError", RetryLater)]
)
def test_invalid_request_is_refused_and_fixable_errors_are_retried(moto_server, code, kind):
    body = f"<ErrorResponse><Error><Code>{code}</Code><Message>why</Message></Error></ErrorResponse>".encode()
    with Receiver() as receiver:
        receiver.reply = Reply(400, {"Content-Type": "text/xml"}, body)
        client = aws_client("sns", moto_server.environ, endpoint_url=receiver.url)
        answer = SnsNotifier(client, region="r").send(COMPLETED, SnsTarget("t", "arn:aws:sns:eu-west-1:1:x"))
        client.close()
    assert isinstance(answer, kind)


def test_target_of_another_kind_is_refused(notifier):
    assert isinstance(notifier.send(COMPLETED, WebhookTarget("h", "https://h/")), Refused)


def test_unavailable_service_is_retried(moto_server):
    client = aws_client("sns", moto_server.environ, endpoint_url=f"http://127.0.0.1:{free_port()}")
    answer = SnsNotifier(client, region="r").send(COMPLETED, SnsTarget("t", "arn:aws:sns:eu-west-1:1:x"))
    assert isinstance(answer, RetryLater)
    client.close()
