"""Models at URIs: runs, servers and workers fetch them from a real S3 server, once for each version."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from integration.command import headrace
from servers.served import serving

pytestmark = pytest.mark.s3

TOML = b'name = "scaled"\nmodel = "scaled.py:Scaled"\n[options]\nfactor = 3\n'
CODE = b"""
import helper
from headrace import Model
class Scaled(Model):
    def __init__(self, factor=1): self.factor = factor
    def predict(self, x): return x[:, 0] * helper.scale(self.factor)
"""
HELPER = b"def scale(factor): return factor * %d\n"


class ModelBucket:
    """A bucket with a model below a prefix and as an archive, and the cache of this machine."""

    def __init__(self, server, cache: Path) -> None:
        self.server = server
        self.name = server.bucket()
        self.cache = cache
        self.environ = {**server.environ, "HEADRACE_CACHE": str(cache)}

    def put_version(self, number: int) -> None:
        """Write a model that multiplies by 3 and the number."""
        files = {"model.toml": TOML, "scaled.py": CODE, "helper.py": HELPER % number}
        client = self.server.client()
        client.put_object(Bucket=self.name, Key="m/scaled/", Body=b"")  # as consoles mark a folder
        for name, data in files.items():
            client.put_object(Bucket=self.name, Key=f"m/scaled/{name}", Body=data)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, data in files.items():
                info = tarfile.TarInfo(f"./{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        client.put_object(Bucket=self.name, Key="m/scaled.tar.gz", Body=packed.getvalue())
        plain = CODE.replace(b"import helper\n", b"").replace(
            b"helper.scale(self.factor)", b"%d" % (3 * number)
        )
        client.put_object(Bucket=self.name, Key="m/scaled.py", Body=plain)

    @property
    def versions(self) -> int:
        """The number of versions of models in the cache."""
        return len([p for p in self.cache.glob("models/*/*") if p.is_dir()])

    def transform(self, model: str, *more: str) -> list[float]:
        done = headrace(
            "transform", "rows.csv", "out/", "--model", f"s3://{self.name}/m/{model}", "--overwrite", *more,
            environ=self.environ,
        )  # fmt: skip
        assert done.code == 0, done.err
        return [float(line) for line in Path("out/rows.csv.out").read_text().splitlines()]


@pytest.fixture
def bucket(s3_server, tmp_path, monkeypatch) -> ModelBucket:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("1,2\n4,5\n")
    made = ModelBucket(s3_server, tmp_path / "cache")
    made.put_version(1)
    return made


@pytest.mark.parametrize("model", ["scaled.py", "scaled.py:Scaled", "scaled/", "scaled.tar.gz"])
def test_model_is_fetched_once_and_again_when_it_changes(bucket, model):
    assert bucket.transform(model) == [3, 12]
    assert bucket.transform(model, "--workers", "2") == [3, 12]
    assert bucket.versions == 1
    bucket.put_version(2)
    assert bucket.transform(model) == [6, 24]
    assert bucket.versions == 2


def test_options_and_names_apply_to_fetched_models(bucket):
    assert bucket.transform("scaled/", "-O", "factor=5") == [5, 20]
    done = headrace(
        "stream", "rows.csv", "--model", f"other=s3://{bucket.name}/m/scaled/", "--output", "s/", "--json",
        environ=bucket.environ,
    )  # fmt: skip
    assert (done.code, done.report["model"]) == (0, "other")


def test_changed_model_is_refused_on_resume(bucket):
    common = ["transform", "rows.csv", "out/", "--model", f"s3://{bucket.name}/m/scaled.py"]
    assert headrace(*common, environ=bucket.environ).code == 0
    bucket.put_version(2)
    refused = headrace(*common, "--resume", environ=bucket.environ)
    assert (refused.code, "model" in refused.err) == (1, True)
    retried = headrace("transform", "retry-failed", "out/", environ=bucket.environ)
    assert (retried.code, "--other-model" in retried.err) == (1, True)


def test_denied_and_missing_models(bucket):
    for name, environ, why in (
        ("m/scaled.py", {**bucket.server.denied_environ, "HEADRACE_CACHE": str(bucket.cache)}, "den"),
        ("m/none.onnx", bucket.environ, "the URI of a folder ends in /"),
        ("none/", bucket.environ, "there is nothing below it"),
    ):
        done = headrace(
            "transform", "rows.csv", "o/", "--model", f"s3://{bucket.name}/{name}", environ=environ
        )
        assert (done.code, why in done.err) == (1, True), done.err


def test_server_serves_fetched_models(bucket):
    model = f"s3://{bucket.name}/m/scaled.tar.gz"
    with serving(model, "--isolation", "process", environ=bucket.environ) as served:
        done = headrace("infer", "scaled", "--input", "[[2, 0]]", "--json", "--url", served.rest)
        assert done.code == 0, done.err
        assert json.loads(done.out)["outputs"][0]["data"] == [6.0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_of_ray_and_beam_fetch_the_model(bucket):
    """Each machine has a cache of its own; here all workers share that of this machine."""
    assert bucket.transform("scaled/", "--runner", "beam", "--workers", "1") == [3, 12]
    assert bucket.versions == 1
    # A process can start Ray with one environment only.
    model = f"s3://{bucket.name}/m/scaled/"
    command = ["transform", "rows.csv", "out/", "--model", model, "--overwrite", "--runner", "ray"]
    environ = {**os.environ, **bucket.environ}
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *command], env=environ, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert Path("out/rows.csv.out").read_text().splitlines() == ["3.0", "12.0"]
    assert bucket.versions == 1
