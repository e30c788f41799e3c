"""The vendor's asynchronous door, asked by the vendor's own SDK."""

import json

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from headrace.core.errors import DataError
from headrace.jobs.access import Scope
from headrace.jobs.ledger import JobFilter
from headrace.jobs.places import Allowed
from headrace.server.jobs.vendor import BODY_BYTES_MAX, VendorSettings, read_invocation
from jobs.desk_support import key_of, served_jobs

SETTINGS = VendorSettings("s3://out/async")


def runtime(url, key="", **config):
    client = boto3.client(
        "sagemaker-runtime",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="AKIATEST",
        aws_secret_access_key="secret",
        config=Config(
            retries={"total_max_attempts": 1}, signature_version=UNSIGNED if key else None, **config
        ),
    )
    if key:

        def bear(request, **_):
            request.headers["Authorization"] = f"Bearer {key}"

        client.meta.events.register("before-sign.sagemaker-runtime", bear)
    return client


@pytest.fixture
def served(make_ledger):
    with served_jobs(ledger=make_ledger(), vendor=SETTINGS) as made:
        yield made


def test_an_invocation_is_a_job_and_its_places_are_told(served):
    answer = runtime(served.url).invoke_endpoint_async(
        EndpointName="churn",
        InputLocation="s3://in/day.csv",
        ContentType="text/csv",
        Accept="application/json",
        CustomAttributes="a=b, c",
        InferenceId="id 1",
        RequestTTLSeconds=60,
        InvocationTimeoutSeconds=3600,
    )
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert answer["InferenceId"] == "id 1"
    (job,) = served.ledger.find(JobFilter()).jobs
    spec = job.spec
    assert (spec.model, spec.input_uri, spec.content_type, spec.accept) == (
        "churn", "s3://in/day.csv", "text/csv", "application/json",
    )  # fmt: skip
    assert (spec.time_to_live_s, spec.time_limit_s) == (60, 3600)
    assert spec.tags == {"custom_attributes": "a=b, c"}
    assert not spec.options
    assert answer["OutputLocation"].startswith("s3://out/async/id-1~")
    assert answer["OutputLocation"].removesuffix(".out") == answer["FailureLocation"].removesuffix(".error")


def test_what_is_left_out_is_as_at_the_vendor(served):
    answer = runtime(served.url).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://in/k")
    (job,) = served.ledger.find(JobFilter()).jobs
    assert (job.spec.time_to_live_s, job.spec.time_limit_s) == (21_600, 900)
    assert answer["OutputLocation"] == f"s3://out/async/{answer['InferenceId']}.out"
    assert answer["FailureLocation"] == f"s3://out/async/{answer['InferenceId']}.error"


def test_a_body_an_extension_and_a_name(served):
    answer = runtime(served.url).invoke_endpoint_async(
        EndpointName="churn",
        Body=b"1,2\n",
        ContentType="text/csv",
        S3OutputPathExtension="day/1",
        Filename="scores.csv",
    )
    assert answer["OutputLocation"] == "s3://out/async/day/1/scores.csv.out"
    (job,) = served.ledger.find(JobFilter()).jobs
    assert served.stores.for_uri(job.spec.input_uri).get(job.spec.input_uri) == b"1,2\n"


def test_a_repetition_by_the_sdk_is_the_same_job(served):
    """Its own retries carry the same invocation id; a second call does not."""
    client = runtime(served.url)
    seen = []

    def same(request, **_):
        request.headers["amz-sdk-invocation-id"] = "invocation-1"
        seen.append(request)

    client.meta.events.register("before-send.sagemaker-runtime", same)
    answers = [
        client.invoke_endpoint_async(EndpointName="churn", InputLocation="s3://in/k") for _ in range(2)
    ]
    assert len(seen) == 2
    assert answers[0]["OutputLocation"] == answers[1]["OutputLocation"]
    assert len(served.ledger.find(JobFilter()).jobs) == 1
    runtime(served.url).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://in/k")
    assert len(served.ledger.find(JobFilter()).jobs) == 2


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"InputLocation": "s3://in/k", "Body": b"x"},
        {"Body": b"x" * (BODY_BYTES_MAX + 1)},
        {"InputLocation": "s3://in/k", "RequestTTLSeconds": 59},
        {"InputLocation": "s3://in/k", "InvocationTimeoutSeconds": 3601},
        {"InputLocation": "s3://in/k", "Filename": "a.b.c"},
        {"InputLocation": "s3://in/k", "S3OutputPathExtension": "s3://elsewhere/"},
        {"InputLocation": "s3://in/k", "S3OutputPathExtension": "../../elsewhere"},
        {"InputLocation": "https://169.254.169.254/k"},
    ],
)
def test_what_the_vendor_refuses_is_refused_in_its_words(served, asked):
    with pytest.raises(ClientError) as refused:
        runtime(served.url, parameter_validation=False).invoke_endpoint_async(EndpointName="churn", **asked)
    assert refused.value.response["Error"]["Code"] == "ValidationError"
    assert refused.value.response["Error"]["Message"]
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert served.ledger.find(JobFilter()).jobs == ()


def test_a_ledger_that_is_away_is_the_vendors_503(served):
    served.ledger.stop()
    with pytest.raises(ClientError) as refused:
        runtime(served.url).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://in/k")
    assert refused.value.response["Error"]["Code"] == "ServiceUnavailable"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503


def test_where_keys_are_asked_for_the_sdk_sends_one():
    text, digest, known = key_of("shop", Scope.SUBMIT, inputs=Allowed(prefixes=("s3://shop",)))
    with served_jobs(keys=[(text, digest, known)], vendor=SETTINGS) as served:
        with pytest.raises(ClientError) as refused:
            runtime(served.url).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://shop/k")
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 401
        runtime(served.url, text).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://shop/k")
        with pytest.raises(ClientError) as refused:
            runtime(served.url, text).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://in/k")
        assert refused.value.response["Error"]["Code"] == "AccessDeniedException"
        (job,) = served.ledger.find(JobFilter()).jobs
        assert (job.spec.tenant, job.spec.output_uri) == ("shop", "s3://out/async")


@pytest.mark.parametrize("name", ["-a", "a-", "a_b", "a" * 64, "../x", ""])
def test_an_endpoint_has_a_name_of_the_vendors_form(name):
    with pytest.raises(DataError, match="EndpointName"):
        read_invocation(name, {"x-amzn-sagemaker-inputlocation": "s3://b/k"}, b"", SETTINGS)


def test_without_the_door_there_is_none(make_ledger):
    with served_jobs(ledger=make_ledger()) as served, served.client() as http:
        answer = http.post("/endpoints/churn/async-invocations", content=b"x")
        assert answer.status_code == 404
        assert "endpoints" not in json.dumps(http.get("/openapi.json").json())
