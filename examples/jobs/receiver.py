"""A receiver of webhooks in 20 lines: verifies the signature, drops what it has seen, answers at once.

python examples/jobs/receiver.py PORT whsec_...
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from headrace.core.errors import UnauthenticatedError
from headrace.jobs import secrets

seen: set[str] = set()  # a real one keeps them where its own work is recorded


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to what is signed, 401 to all else."""

    def do_POST(self) -> None:
        """Take one notification."""
        body = self.rfile.read(min(int(self.headers["Content-Length"] or 0), 65_536))
        try:
            event = secrets.verify([KEY], dict(self.headers), body, now_s=time.time())
        except UnauthenticatedError as error:
            self.send_error(401, str(error))
            return
        if event not in seen:  # it may come twice: its id tells
            seen.add(event)
            told = json.loads(body)
            print(told["type"], told["data"]["job_id"], told["data"].get("reason", ""), flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing but what was told."""


if __name__ == "__main__":
    KEY = secrets.key_of(sys.argv[2])
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
