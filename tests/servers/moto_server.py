"""SQS, SNS and S3 as `moto` imitates them, as a server of its own process.

An imitation: it stands for what the API looks like (long polls, visibility, receive counts), not for how AWS fails.
"""

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from servers.ports import free_port

READY_S = 60.0


class MotoServer:
    """One `moto_server`; stopping it loses all that it has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """All that a client needs."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def client(self, service: str):
        """A boto3 client, for what the tests do behind headrace's back."""
        import boto3

        return boto3.Session().client(
            service,
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )

    def start(self) -> None:
        """Start, with nothing in it; returns when it answers."""
        assert self._process is None, "the server runs already"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(self.port)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self._process.poll() is None:
            if self._answers():
                return
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"moto does not start:\n{(self.folder / 'log').read_text()[-4000:]}")

    def stop(self) -> None:
        """Kill it. Twice does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
            return error.code < 500
        except OSError:
            return False
        return True
