"""An HTTP server on loopback that serves bytes, with or without ranges, and fails on demand.

It also serves S3 clients that only read: with AWS_SKIP_SIGNATURE they request ``/bucket/key``.
"""

import hashlib
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

from servers.http_server import HttpServerThread


@dataclass(frozen=True)
class Fault:
    """The treatment of one request instead of a good response."""

    status: int = 0
    """Answer with this status and nothing else."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_at: int | None = None
    """Close the connection after this number of bytes of the body."""
    hang: bool = False
    """Send no response until the server is closed."""


CUT_NOW = Fault(cut_at=0)


class HttpFiles(HttpServerThread):
    """Serves `objects` by path. Each request uses up one of `faults`; `requests` records them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.pages: dict[str, tuple[str, bytes]] = {}
        """Complete responses by path and query: content type and body."""
        self.faults: list[Fault | None] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.ranges = True
        self.etags = True
        self.dates = True
        self.lengths = True
        self.heads = True
        self._lock = threading.Lock()
        super().__init__()

    @property
    def s3_environ(self) -> dict[str, str]:
        return {"AWS_ENDPOINT_URL": self.url, "AWS_SKIP_SIGNATURE": "true", "HOME": "/nonexistent"}

    def ranges_asked(self) -> list[str]:
        return [headers.get("range", "") for _, _, headers in self.requests]

    def _next_fault(self, method: str, path: str, headers: dict[str, str]) -> Fault | None:
        with self._lock:
            self.requests.append((method, path, headers))
            return self.faults.pop(0) if self.faults else None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        files = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                fault = files._next_fault(self.command, self.path, headers)
                if fault and fault.hang:
                    files.closing.wait(30)
                    self.close_connection = True
                elif fault and fault.status:
                    self.answer(fault.status, fault.headers, fault.body)
                else:
                    self.serve(headers, fault.cut_at if fault else None)

            do_HEAD = do_PUT = do_DELETE = do_GET  # noqa: N815 - only faults respond to writes

            def serve(self, headers: dict[str, str], cut_at: int | None) -> None:
                if self.path in files.pages:
                    kind, body = files.pages[self.path]
                    self.answer(200, {"Content-Type": kind}, body)
                    return
                if self.command == "HEAD" and not files.heads:
                    self.answer(405, {}, b"")
                    return
                data = files.objects.get(unquote(urlsplit(self.path).path))
                if data is None:
                    self.answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
                    return
                etag = f'"{hashlib.md5(data).hexdigest()}"'
                if files.etags and headers.get("if-match", etag) != etag:
                    self.answer(412, {}, b"")
                    return
                self.serve_data(data, headers.get("range", ""), etag, cut_at)

            def serve_data(self, data: bytes, asked: str, etag: str, cut_at: int | None) -> None:
                found = {"Last-Modified": "Sat, 21 Nov 2026 08:00:00 GMT"} if files.dates else {}
                if files.etags:
                    found["ETag"] = etag
                if files.ranges:
                    found["Accept-Ranges"] = "bytes"
                match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked) if files.ranges else None
                if match is None:
                    self.answer(200, found, data, cut_at)
                    return
                start = int(match[1])
                end = min(int(match[2] or len(data)), len(data) - 1)
                if start >= len(data):
                    self.answer(416, {"Content-Range": f"bytes */{len(data)}"}, b"")
                    return
                found["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
                self.answer(206, found, data[start : end + 1], cut_at)

            def answer(
                self, status: int, headers: dict[str, str], body: bytes, cut_at: int | None = None
            ) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if files.lengths:
                    self.send_header("Content-Length", str(len(body)))
                else:
                    self.close_connection = True
                self.end_headers()
                if self.command == "HEAD":
                    return
                if cut_at is not None:
                    body = body[:cut_at]
                    self.close_connection = True
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
