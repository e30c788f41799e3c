"""A stream over a real S3 server: a restart of the server in mid-stream changes no byte."""

import io
import random
import tarfile

import pytest

from integration.command import headrace
from integration.hooked_model import SPEC, Hooked
from servers.polling import wait_until

pytestmark = pytest.mark.s3

OBJECTS = 6
MEMBERS = 2
ROWS = 5_000  # per object, in ten batches


def archive(seed: int) -> bytes:
    """Return a tar.gz of CSV members that do not compress, each with a bad row."""
    rng = random.Random(seed)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for member in range(MEMBERS):
            lines = [f"{rng.random():.9f},{rng.random():.9f}\n" for _ in range(ROWS // MEMBERS)]
            lines[member] = "oops,1\n"
            data = "".join(lines).encode()
            info = tarfile.TarInfo(f"day/{member}.csv")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def stream(server, bucket: str, output: str, *more: str):
    return headrace(
        "stream", f"s3://{bucket}/in/", "--model", SPEC, "--output", f"s3://{bucket}/{output}/",
        "--join", "input", "--part-bytes-max", "100k", "--prefetch-bytes-max", "1k", "--json", *more,
        environ=server.environ,
    )  # fmt: skip


def contents(server, bucket: str, output: str) -> dict[str, bytes]:
    client = server.client()
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{output}/part-").get("Contents", [])
    keys = [entry["Key"] for entry in listed]
    return {
        key.removeprefix(output): client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys
    }


@pytest.fixture
def bucket(s3_server) -> str:
    name = s3_server.bucket()
    for number in range(OBJECTS):
        s3_server.client().put_object(Bucket=name, Key=f"in/{number}.tar.gz", Body=archive(number))
    return name


def test_server_restart_in_mid_stream_changes_no_byte(s3_server, bucket, monkeypatch):
    undisturbed = stream(s3_server, bucket, "undisturbed")
    assert undisturbed.code == 3
    assert undisturbed.report["rows_out"] == OBJECTS * (ROWS - MEMBERS)
    expected = contents(s3_server, bucket, "undisturbed")
    assert len(expected) > 6

    restarts = []
    parts_before = []

    def stop_and_start(call: int) -> None:
        # In the third object: the engine's queue is limited, so the last objects are not read yet.
        if call == 25:
            # Parts are written beside the model's calls, late on a busy machine.
            wait_until(lambda: contents(s3_server, bucket, "disturbed"), "a part")
            parts_before.append(len(contents(s3_server, bucket, "disturbed")))
            s3_server.stop()
            restarts.append(s3_server.start_in_background())

    monkeypatch.setattr(Hooked, "before_call", staticmethod(stop_and_start))
    try:
        disturbed = stream(s3_server, bucket, "disturbed", "-v")
    finally:
        for restart in restarts:
            restart.join()
    assert len(restarts) == 1
    assert disturbed.code == 3
    found = contents(s3_server, bucket, "disturbed")
    assert 0 < parts_before[0] < len(found)
    assert "reading failed, retrying" in disturbed.err
    assert "writing failed, retrying" in disturbed.err
    assert found == expected
    counts = ("records_in", "rows_out", "rows_failed", "objects_read", "objects_broken", "parts")
    assert {c: disturbed.report[c] for c in counts} == {c: undisturbed.report[c] for c in counts}
