"""The route for SageMaker clients, called by boto3."""

import json

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from cases import for_each
from headrace.core.errors import DataError
from headrace.jobs.access import Scope
from headrace.jobs.ledger import JobFilter
from headrace.jobs.paths import UriAllowList, output_name
from headrace.jobs.worker_registry import WorkerInfo
from headrace.server.jobs.sagemaker import BODY_BYTES_MAX, SageMakerSettings, read_invocation
from jobs.service_support import key_of, served_jobs

SETTINGS = SageMakerSettings("s3://out/async")


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
    with served_jobs(ledger=make_ledger(), sagemaker=SETTINGS) as made:
        yield made


def test_invocation_makes_a_job_and_returns_its_locations(served):
    response = runtime(served.url).invoke_endpoint_async(
        EndpointName="churn",
        InputLocation="s3://in/day.csv",
        ContentType="text/csv",
        Accept="application/json",
        CustomAttributes="a=b, c",
        InferenceId="id 1",
        RequestTTLSeconds=60,
        InvocationTimeoutSeconds=3600,
    )
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert response["InferenceId"] == "id 1"
    (job,) = served.ledger.find(JobFilter()).jobs
    spec = job.spec
    assert (spec.model, spec.input_uri, spec.content_type, spec.accept) == (
        "churn", "s3://in/day.csv", "text/csv", "application/json",
    )  # fmt: skip
    assert (spec.time_to_live_s, spec.time_limit_s) == (60, 3600)
    assert spec.tags == {"custom_attributes": "a=b, c"}
    assert not spec.options
    assert response["OutputLocation"] == "s3://out/async/id 1.out"
    assert response["FailureLocation"] == "s3://out/async/id 1.error"


def test_equal_inference_ids_have_locations_of_their_own(served):
    """Regression: the second job replaced the object of the first, also of another key."""
    first, second = (
        runtime(served.url).invoke_endpoint_async(
            EndpointName="churn", InputLocation="s3://in/k", InferenceId="same"
        )
        for _ in range(2)
    )
    # Both were submitted in one millisecond of the ledger's clock, so their order is random.
    first_job, newest = sorted(served.ledger.find(JobFilter()).jobs, key=lambda job: job.spec.output_name)
    assert output_name(first_job.spec) == "same"
    assert first["OutputLocation"] == "s3://out/async/same.out"
    assert second["OutputLocation"] == f"s3://out/async/same~{newest.id}.out"
    assert second["FailureLocation"] == f"s3://out/async/same~{newest.id}.error"


def test_omitted_settings_have_sagemakers_defaults(served):
    response = runtime(served.url).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://in/k")
    (job,) = served.ledger.find(JobFilter()).jobs
    assert (job.spec.time_to_live_s, job.spec.time_limit_s) == (21_600, 900)
    assert response["OutputLocation"] == f"s3://out/async/{response['InferenceId']}.out"
    assert response["FailureLocation"] == f"s3://out/async/{response['InferenceId']}.error"


def test_body_extension_and_file_name_are_used(served):
    response = runtime(served.url).invoke_endpoint_async(
        EndpointName="churn",
        Body=b"1,2\n",
        ContentType="text/csv",
        S3OutputPathExtension="day/1",
        Filename="scores.csv",
    )
    assert response["OutputLocation"] == "s3://out/async/day/1/scores.csv.out"
    (job,) = served.ledger.find(JobFilter()).jobs
    assert served.stores.for_uri(job.spec.input_uri).get(job.spec.input_uri) == b"1,2\n"


def test_sdk_retry_makes_one_job(served):
    """The SDK's own retries have the same invocation id; a second call has another one."""
    client = runtime(served.url)
    seen = []

    def same(request, **_):
        request.headers["amz-sdk-invocation-id"] = "invocation-1"
        seen.append(request)

    client.meta.events.register("before-send.sagemaker-runtime", same)
    responses = [
        client.invoke_endpoint_async(EndpointName="churn", InputLocation="s3://in/k") for _ in range(2)
    ]
    assert len(seen) == 2
    assert responses[0]["OutputLocation"] == responses[1]["OutputLocation"]
    assert len(served.ledger.find(JobFilter()).jobs) == 1
    runtime(served.url).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://in/k")
    assert len(served.ledger.find(JobFilter()).jobs) == 2


@for_each(
    "requested",
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
def test_invalid_invocation_has_sagemakers_error(served, requested):
    with pytest.raises(ClientError) as refused:
        runtime(served.url, parameter_validation=False).invoke_endpoint_async(
            EndpointName="churn", **requested
        )
    assert refused.value.response["Error"]["Code"] == "ValidationError"
    assert refused.value.response["Error"]["Message"]
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert served.ledger.find(JobFilter()).jobs == ()


def test_unavailable_ledger_has_sagemakers_503(served):
    served.ledger.stop()
    with pytest.raises(ClientError) as refused:
        runtime(served.url).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://in/k")
    assert refused.value.response["Error"]["Code"] == "ServiceUnavailable"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503


def test_unknown_endpoint_is_a_validation_error(served):
    served.ledger.register_worker(WorkerInfo("w", queues=("default",), models=("fraud",)))
    with pytest.raises(ClientError) as refused:
        runtime(served.url).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://in/k")
    assert refused.value.response["Error"]["Code"] == "ValidationError"
    assert "known models: fraud" in refused.value.response["Error"]["Message"]


def test_sdk_can_send_an_api_key():
    text, digest, known = key_of("shop", Scope.SUBMIT, inputs=UriAllowList(prefixes=("s3://shop",)))
    with served_jobs(keys=[(text, digest, known)], sagemaker=SETTINGS) as served:
        with pytest.raises(ClientError) as refused:
            runtime(served.url).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://shop/k")
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 401
        runtime(served.url, text).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://shop/k")
        with pytest.raises(ClientError) as refused:
            runtime(served.url, text).invoke_endpoint_async(EndpointName="churn", InputLocation="s3://in/k")
        assert refused.value.response["Error"]["Code"] == "AccessDeniedException"
        (job,) = served.ledger.find(JobFilter()).jobs
        assert (job.spec.tenant, job.spec.output_uri) == ("shop", "s3://out/async")


@for_each("name", ["-a", "a-", "a_b", "a" * 64, "../x", ""])
def test_invalid_endpoint_names_are_refused(name):
    with pytest.raises(DataError, match="EndpointName"):
        read_invocation(name, {"x-amzn-sagemaker-inputlocation": "s3://b/k"}, b"", SETTINGS)


def test_route_exists_only_with_settings(make_ledger):
    with served_jobs(ledger=make_ledger()) as served, served.client() as http:
        response = http.post("/endpoints/churn/async-invocations", content=b"x")
        assert response.status_code == 404
        assert "async-invocations" not in json.dumps(http.get("/openapi.json").json())
