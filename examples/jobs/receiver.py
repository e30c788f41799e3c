"""A webhook receiver in 20 lines: it verifies signatures, drops duplicates and responds at once.

python examples/jobs/receiver.py PORT whsec_...
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from headrace.core.errors import UnauthenticatedError
from headrace.jobs.notify import decode_secret, verify

seen: set[str] = set()  # a production receiver stores these ids with its own data


class Receiver(BaseHTTPRequestHandler):
    """A handler that responds 204 to signed requests and 401 to all others."""

    def do_POST(self) -> None:
        """Receive one notification."""
        body = self.rfile.read(min(int(self.headers["Content-Length"] or 0), 65_536))
        try:
            event = verify([KEY], dict(self.headers), body, now_s=time.time())
        except UnauthenticatedError as error:
            self.send_error(401, str(error))
            return
        if event not in seen:  # a notification may arrive twice, with the same id
            seen.add(event)
            message = json.loads(body)
            print(message["type"], message["data"]["job_id"], message["data"].get("reason", ""), flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing: the output shows notifications only."""


if __name__ == "__main__":
    KEY = decode_secret(sys.argv[2])
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
