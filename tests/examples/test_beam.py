"""The Beam example: real images on a real S3 server, scored by the model that was trained for them,
with failures.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "beam"
IMAGES = 120


@pytest.fixture
def run(s3_server, tmp_path):
    """Run one of the example's scripts as a user would, in an empty folder."""

    def run(script: str, *arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, EXAMPLE / script, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, **s3_server.environ},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def lines_of(client, bucket: str, prefix: str) -> list[dict]:
    listed = client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    bodies = [client.get_object(Bucket=bucket, Key=found["Key"])["Body"].read() for found in listed]
    return [json.loads(line) for body in bodies for line in body.splitlines()]


@pytest.mark.s3
@pytest.mark.timeout(300)  # two processes that import scikit-learn and Beam
def test_every_image_is_read_and_what_is_no_image_costs_its_line(run, s3_server):
    client, bucket = s3_server.client(), s3_server.bucket()
    run("make_digits.py", f"s3://{bucket}/digits/", "--images", IMAGES)
    records = client.get_object(Bucket=bucket, Key="digits/records.jsonl")["Body"].read().decode()
    client.put_object(Bucket=bucket, Key="digits/text.png", Body=b"no image")
    bad = [
        json.dumps({"id": "gone", "image": f"s3://{bucket}/digits/gone.png"}),
        json.dumps({"id": "text", "image": f"s3://{bucket}/digits/text.png"}),
        json.dumps({"id": "none"}),
        "{",
    ]
    all_lines = [bad[0], *records.splitlines(), *bad[1:]]
    client.put_object(Bucket=bucket, Key="digits/records.jsonl", Body="\n".join(all_lines).encode())

    said = run(
        "classify_images.py",
        *(f"s3://{bucket}/digits/records.jsonl", "--model", "digits.onnx", "--output", f"s3://{bucket}/out/"),
    )
    assert said == f"{IMAGES} images classified, 0 refused\n"
    predictions = lines_of(client, bucket, "out/predictions")
    assert sorted(p["id"] for p in predictions) == [f"{898 + i:05}" for i in range(IMAGES)]
    assert sum(p["predicted"] == p["digit"] for p in predictions) > 0.85 * IMAGES
    assert all(0 < p["probability"] <= 1 for p in predictions)
    failures = lines_of(client, bucket, "out/failures")
    assert [failed["record"] for failed in failures] == bad
    assert [failed["line"] for failed in failures] == [1, *range(IMAGES + 2, IMAGES + 5)]
    assert [failed["why"].partition(":")[0] for failed in failures] == [
        "NotFoundError",
        "ValueError",
        "KeyError",
        "JSONDecodeError",
    ]
