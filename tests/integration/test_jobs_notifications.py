"""Notifications of jobs over real sockets (webhooks, email, SNS), and object events that make jobs."""

import json
import queue

import httpx
import pytest
from aiosmtpd.controller import Controller
from standardwebhooks import Webhook

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.client import Client
from headrace.jobs.state import JobState
from integration.jobs_process import WAIT_S, UpProcess, wait_completed
from integration.test_jobs_up import request, wait_for_object
from servers.ports import free_port
from servers.receiver import Receiver

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


class Inbox:
    """The envelopes that aiosmtpd received."""

    def __init__(self) -> None:
        self.messages = queue.Queue()

    async def handle_DATA(self, server, session, envelope):
        self.messages.put(envelope)
        return "250 OK"


@pytest.fixture(scope="module")
def receiver():
    with Receiver() as opened:
        yield opened


@pytest.fixture(scope="module")
def inbox():
    opened = Inbox()
    opened.port = free_port()
    controller = Controller(opened, hostname="127.0.0.1", port=opened.port)
    controller.start()
    yield opened
    controller.stop()


@pytest.fixture(scope="module")
def bucket(moto_server):
    moto_server.client("s3").create_bucket(Bucket="notified")
    return "notified"


@pytest.fixture(scope="module")
def events_queue(moto_server):
    return moto_server.client("sqs").create_queue(QueueName="events")["QueueUrl"]


@pytest.fixture(scope="module")
def up(tmp_path_factory, moto_server, receiver, inbox, bucket, events_queue):  # noqa: PLR0917 - fixtures
    folder = tmp_path_factory.mktemp("notified")
    (folder / "jobs.toml").write_text(f"""
[anyone]
inputs = ["s3://{bucket}/in"]
outputs = ["s3://{bucket}/out"]

[[triggers]]
name = "incoming"
prefix = "s3://{bucket}/in/"
suffix = ".csv"
model = "model"
output = "s3://{bucket}/fired/"

[receivers.billing]
webhook = "{receiver.url}"
secret = "{SECRET}"

[smtp]
host = "127.0.0.1"
port = {inbox.port}
security = "none"
sender = "jobs@example.com"

[outbound]
plain_http = true
ports = [{receiver.port}]
networks = ["127.0.0.0/8"]
""")
    options = ("--config", "jobs.toml", "--events-queue", events_queue)
    with UpProcess(folder, "model.py", *options, environ=moto_server.environ) as opened:
        yield opened.wait_until_ready()


@pytest.fixture
def client(up):
    with up.client() as opened:
        yield opened


def wait_for_request(receiver, job_id):
    """Wait for a request with the job's id, and return all of them."""

    def found():
        return [each for each in receiver.requests if job_id.encode() in each.body]

    with receiver._changed:
        assert receiver._changed.wait_for(found, WAIT_S), f"no request has the job {job_id}"
    return found()


def test_webhook_is_signed_and_names_the_result(client, receiver, moto_server, bucket):
    s3 = moto_server.client("s3")
    s3.put_object(Bucket=bucket, Key="in/hook.txt", Body=b"1,0\n")
    hook = {"webhook": receiver.url, "secret": SECRET}
    job = client.submit(
        "model", input_uri=f"s3://{bucket}/in/hook.txt", content_type="text/csv",
        output_uri=f"s3://{bucket}/out/", key="hook", notify=[hook],
    )  # fmt: skip
    (sent,) = wait_for_request(receiver, job.id)
    event = Webhook(SECRET).verify(sent.body, sent.headers)
    assert event["type"] == "job.completed"
    assert event["data"]["output_uri"] == f"s3://{bucket}/out/hook.out"
    # The result is published before its webhook is sent.
    assert s3.get_object(Bucket=bucket, Key="out/hook.out")["Body"].read() == b"2.0\n"


def test_secrets_are_encrypted_in_the_data_folder(up, client, receiver):
    """Before, a copy of the database could sign as the operator."""
    job = client.submit("model", request(1), notify=[{"webhook": receiver.url, "secret": SECRET}])
    (sent,) = wait_for_request(receiver, job.id)
    assert Webhook(SECRET).verify(sent.body, sent.headers)["type"] == "job.completed"
    files = [path for path in (up.folder / "headrace-data").rglob("*") if path.is_file()]
    assert any(b"encrypted:v1:" in path.read_bytes() for path in files)
    assert not [path for path in files if b"whsec_" in path.read_bytes()]


def test_named_receiver_gets_only_its_events(client, receiver):
    notify = [{"receiver": "billing", "events": ["failed"]}]
    good = client.submit("model", request(1), notify=notify)
    bad = client.submit("model", {"unknown_input": [1]}, notify=notify, attempts_max=1)
    wait_completed(client, good.id)
    (sent,) = wait_for_request(receiver, bad.id)
    assert json.loads(sent.body)["type"] == "job.failed"
    assert not [each for each in receiver.requests if good.id.encode() in each.body]


def test_email_is_sent(client, inbox):
    job = client.submit("model", request(1), notify=[{"email": "somebody@example.com"}])
    mail = inbox.messages.get(timeout=WAIT_S)
    assert (mail.mail_from, mail.rcpt_tos) == ("jobs@example.com", ["somebody@example.com"])
    assert job.id.encode() in mail.content


def test_topic_gets_a_message(client, moto_server):
    sns, sqs = moto_server.client("sns"), moto_server.client("sqs")
    topic = sns.create_topic(Name="ends")["TopicArn"]
    queue = sqs.create_queue(QueueName="ends")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    job = client.submit("model", request(1), notify=[{"sns": {"success_topic": topic}}], key="inference-7")
    wait_completed(client, job.id)
    (message,) = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20)["Messages"]
    notification = json.loads(json.loads(message["Body"])["Message"])
    assert (notification["invocationStatus"], notification["inferenceId"]) == ("Completed", "inference-7")


@for_each(
    "receiver",
    [
        {"receiver": "unknown"},
        {"webhook": "http://10.0.0.1/", "secret": SECRET},
        {"webhook": "https://169.254.169.254/", "secret": SECRET},
        {"fax": 1},
    ],
)
def test_receiver_that_cannot_be_notified_is_refused_at_submission(client, receiver):
    with pytest.raises(ConfigError):
        client.submit("model", request(1), notify=[receiver])


def event(bucket, key, **more):
    record = {
        "eventSource": more.pop("source", "aws:s3"),
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": bucket}, "object": {"key": key, "size": 4, "eTag": "e"}},
    }
    return {"Records": [record], **more}


def test_object_events_of_all_kinds_make_one_job_per_object(up, client, moto_server, bucket):
    s3 = moto_server.client("s3")
    for name in ("a b", "c"):
        s3.put_object(Bucket=bucket, Key=f"in/day/{name}.csv", Body=b"1,0\n")
    a = [
        event(bucket, "in/day/a+b.csv"),
        event(bucket, "in%2Fday%2Fa+b.csv", source="minio:s3", EventName="s3:ObjectCreated:Put", Key="x"),
        event(bucket, "in/day/a b.csv", source="ceph:s3"),
    ]
    c = event(bucket, "in/day/c.csv")
    seen = []
    for document in (a[0], c, a[1], a[2], c, a[0]):
        response = httpx.post(f"{up.url}/v1/events/s3", json=document, trust_env=False)
        seen += [(o["job_id"], o["created"]) for o in response.json()["outcomes"]]
    assert [created for _, created in seen] == [True, True, False, False, False, False]
    assert len({job_id for job_id, _ in seen}) == 2
    for name in ("a b", "c"):
        job_id = seen[0 if name == "a b" else 1][0]
        job = wait_completed(client, job_id)
        assert job.spec.correlation_id == "trigger:incoming"
    assert wait_for_object(s3, bucket, "fired/day/c.csv.out") == b"2.0\n"
    response = httpx.post(f"{up.url}/v1/events/s3", json=event(bucket, "fired/day/c.csv"), trust_env=False)
    (outcome,) = response.json()["outcomes"]
    assert (outcome["job_id"], "where jobs write" in outcome["reason"]) == ("", True)


def test_events_of_a_queue_make_jobs(client, moto_server, bucket, events_queue):
    s3, sqs = moto_server.client("s3"), moto_server.client("sqs")
    s3.put_object(Bucket=bucket, Key="in/queued.csv", Body=b"4,0\n")
    for _ in range(2):
        sqs.send_message(QueueUrl=events_queue, MessageBody=json.dumps(event(bucket, "in/queued.csv")))
    assert wait_for_object(s3, bucket, "fired/queued.csv.out") == b"8.0\n"
    jobs = [job for job in client.list(correlation_id="trigger:incoming") if "queued" in job.spec.input_uri]
    assert len(jobs) == 1


def test_receivers_on_this_machine_are_refused_by_default(tmp_path, receiver):
    with UpProcess(tmp_path) as up, Client(up.wait_until_ready().url) as client:
        for url in (receiver.url, "https://127.0.0.1/", "https://localhost.:1/", "http://[::1]/"):
            with pytest.raises(ConfigError):
                client.submit("model", request(1), notify=[{"webhook": url, "secret": SECRET}])
        # A host name is checked when headrace connects to it.
        job = client.submit(
            "model", request(1), notify=[{"webhook": "https://localhost/hook", "secret": SECRET}]
        )
        assert client.cancel(job.id).state is JobState.CANCELLED
        assert up.terminate() == 0
