"""One job through `headrace up` over each kind of real server; the rest stays embedded."""

import json

import pytest

from integration.jobs_process import UpProcess, wait_completed

pytestmark = pytest.mark.smoke

INPUT = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [2, 2], "data": [1.5, 0, 4, 0]}]}


def result_of_one_job(folder, *options, environ=None):
    """Run one job with these options of ``headrace up`` and return its result's numbers."""
    with UpProcess(folder, "model.py", "--no-serve", *options, environ=environ) as up:
        with up.wait_until_ready().client() as client:
            job = wait_completed(client, client.submit("model", INPUT).id)
            result = client.result(job.id)
        assert up.terminate() == 0
    return json.loads(result)["outputs"][0]["data"]


def test_s3_keeps_payloads_and_results(tmp_path, s3_server):
    store = f"s3://{s3_server.bucket()}/jobs/"
    ledger = f"sqlite:///{tmp_path / 'jobs.db'}"
    options = ("--ledger", ledger, "--store", store)
    assert result_of_one_job(tmp_path, *options, environ=s3_server.environ) == [3.0, 8.0]


def test_postgresql_is_the_job_ledger(tmp_path, postgres_url):
    options = ("--ledger", postgres_url, "--store", str(tmp_path / "store"))
    assert result_of_one_job(tmp_path, *options) == [3.0, 8.0]


def test_valkey_wakes_the_worker(tmp_path, valkey_server):
    options = ("--data", str(tmp_path / "data"), "--dispatcher", valkey_server.url)
    assert result_of_one_job(tmp_path, *options) == [3.0, 8.0]
