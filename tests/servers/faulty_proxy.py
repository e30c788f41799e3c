"""A proxy before an S3 server that spoils a share of the requests, reproducibly by a seed."""

import http.client
import random
import threading
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler
from itertools import cycle
from urllib.parse import urlsplit

from servers.http_server import HttpServerThread

RESPONSE_S = 30.0
FAULTS = ("500", "503", "reset", "lost", "cut")
"""The kinds of faults.

A status: an error response, and the server gets no request. reset: no response, and no request.
lost: the server handles the request, the response is dropped. cut: half of the response to a GET.
"""


class FaultyProxy(HttpServerThread):
    """A proxy before the server at `endpoint` that spoils `share` of all requests.

    The seed and the earlier requests determine which requests are spoilt; each method meets the
    faults in turn. `injected` counts them by (method, fault). `lost` names the requests that the
    server handled and the client got no response to. After `away_after` requests no request gets a
    response.
    """

    def __init__(self, endpoint: str, *, share: float, seed: int) -> None:
        self.share = share
        self.away_after: int | None = None
        self.injected: Counter[tuple[str, str]] = Counter()
        self.lost: list[tuple[str, str]] = []
        """Methods and paths of the requests whose responses were lost."""
        self.passed = 0
        self._upstream = urlsplit(endpoint).netloc
        self._random = random.Random(seed)
        self._faults = defaultdict(lambda: cycle(FAULTS[:-1]), GET=cycle(FAULTS))
        self._lock = threading.Lock()
        super().__init__()

    def environ(self, server_environ: dict[str, str]) -> dict[str, str]:
        """Return the environment of a client that goes through the proxy, from that of the server."""
        return {**server_environ, "AWS_ENDPOINT_URL": self.url}

    def _fault(self, method: str) -> str:
        with self._lock:
            if self.away_after is not None and self.passed >= self.away_after:
                return "reset"
            fault = ""
            if self._random.random() < self.share:
                fault = next(self._faults[method])
            if fault:
                self.injected[method, fault] += 1
            else:
                self.passed += 1
            return fault

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                fault = proxy._fault(self.command)
                sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if fault == "reset":
                    self.close_connection = True
                elif fault in {"500", "503"}:
                    code = "InternalError" if fault == "500" else "SlowDown"
                    self.answer(int(fault), [], f"<Error><Code>{code}</Code></Error>".encode())
                else:
                    self.pass_on(sent, fault)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

            def pass_on(self, sent: bytes, fault: str) -> None:
                upstream = http.client.HTTPConnection(proxy._upstream, timeout=RESPONSE_S)
                try:
                    # The client has signed its Host header.
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        if name.lower() != "connection":
                            upstream.putheader(name, value)
                    upstream.endheaders(sent)
                    answer = upstream.getresponse()
                    body = answer.read()
                    if fault == "lost":
                        proxy.lost.append((self.command, self.path))
                        self.close_connection = True
                        return
                    self.answer(answer.status, answer.getheaders(), body, cut=fault == "cut")
                finally:
                    upstream.close()

            def answer(
                self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False
            ) -> None:
                self.send_response_only(status)
                by_name = {name.lower(): value for name, value in headers}
                for name, value in headers:
                    if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                        self.send_header(name, value)
                if self.command == "HEAD":
                    self.send_header("Content-Length", by_name.get("content-length", "0"))
                elif status != http.HTTPStatus.NO_CONTENT:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if cut:
                    body = body[: len(body) // 2]
                    self.close_connection = True
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
