"""kubectl, which parses discovery and errors as all programs of Kubernetes do."""

import json
import os
import shutil
import subprocess

import pytest

from scaling.external_metrics.adapter import METRIC, WAIT_S

pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="needs kubectl (Debian: kubernetes-client)"
)


@pytest.fixture
def kubectl(https_address, certificates, tmp_path):
    """Return a function that runs kubectl without any other settings, and returns the finished process."""
    options = [
        f"--server={https_address}",
        f"--certificate-authority={certificates.ca}",
        f"--client-certificate={certificates.client}",
        f"--client-key={certificates.client_key}",
        f"--cache-dir={tmp_path / 'cache'}",
    ]

    def run(*arguments):
        return subprocess.run(
            ["kubectl", *options, *arguments],
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * WAIT_S,
        )

    return run


def table(done):
    """Return the rows of a successful command."""
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_kubectl_reads_the_metric(kubectl):
    done = kubectl("get", "--raw", f"{METRIC}?labelSelector=pool%3Dgpu")
    assert done.returncode == 0, done.stderr
    assert [each["value"] for each in json.loads(done.stdout)["items"]] == ["3"]


def test_kubectl_discovers_the_group_and_the_metric(kubectl, ledger):
    ledger.memory.unavailable = True
    assert table(kubectl("api-versions")) == [["external.metrics.k8s.io/v1beta1"]]
    assert table(kubectl("api-resources", "--no-headers")) == [
        ["headrace_pool_workers_wanted", "external.metrics.k8s.io/v1beta1", "true", "ExternalMetricValueList"]
    ]


def test_kubectl_shows_the_message_of_an_error(kubectl, ledger):
    ledger.release("gpu")
    failed = kubectl("get", "headrace_pool_workers_wanted", "--selector=pool=gpu")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith(
        "Error from server (ServiceUnavailable): pool 'gpu' has no controller: start one"
    )
    refused = kubectl("get", "--raw", f"{METRIC}?labelSelector=pool%3E1")
    assert refused.stderr.startswith("Error from server (BadRequest): labelSelector: found '>'")
    unknown = kubectl("get", "--raw", "/apis/apps")
    assert unknown.stderr == "Error from server (NotFound): no resource at /apis/apps\n"
