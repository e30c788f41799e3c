"""SQS, SNS and S3 by `moto`, as a server process.

moto imitates the API (long polls, visibility, receive counts), but not the failures of AWS.
"""

import sys
from pathlib import Path

from servers.ports import free_port
from servers.process import ServerProcess, answers_http


class MotoServer(ServerProcess):
    """One `moto_server`; stopping it loses all its data."""

    named = "moto"
    ready_s = 60.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """The environment that a client needs."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def client(self, service: str):
        """Return a boto3 client for the test's own requests."""
        import boto3

        return boto3.Session().client(
            service,
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )

    def _command(self):
        return [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(self.port)]

    def _answers(self) -> bool:
        return answers_http(f"{self.endpoint}/moto-api/")
