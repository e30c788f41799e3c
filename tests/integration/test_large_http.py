"""A source far larger than memory, read over HTTP while it is generated: the memory stays flat."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from levels import by_level

ROWS = "".join(f"{number % 97},{number % 89}\n" for number in range(97 * 89 * 8)).encode()
"""The rows that the server repeats."""
COPIES = by_level(20, 500, 250_320)
"""The number of repetitions: 100 GB at the level soak."""
GROWTH_MB_MAX = 30

MODEL = """
import headrace

class Sum(headrace.Model):
    def predict(self, x):
        return {"y": x.sum(axis=1)}
"""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._send_head(200, len(ROWS) * COPIES)

    def do_GET(self) -> None:
        size = len(ROWS) * COPIES
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "bytes=0-")
        assert wanted is not None
        start, stop = int(wanted[1]), min(int(wanted[2] or size - 1), size - 1) + 1
        self._send_head(206, stop - start, {"Content-Range": f"bytes {start}-{stop - 1}/{size}"})
        while start < stop:
            at = start % len(ROWS)
            piece = memoryview(ROWS)[at : at + min(stop - start, len(ROWS) - at)]
            self.wfile.write(piece)
            start += len(piece)

    def _send_head(self, status: int, length: int, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(length), "ETag": '"1"', "Accept-Ranges": "bytes"}
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/rows.csv"
        server.shutdown()
        thread.join()


@pytest.mark.timeout(3600)
def test_memory_is_flat_over_a_large_http_object(url, tmp_path):
    (tmp_path / "m.py").write_text(MODEL)
    command = [sys.executable, "-m", "headrace", "stream", url, "--model", "m.py", "--output", "o/", "--json"]
    peaks_mb: list[float] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        report: dict = {}
        for line in process.stdout:
            report = json.loads(line)
            if report["event"] == "progress" and report["records"]:
                peaks_mb.append(_peak_mb(process.pid))
    rows = ROWS.count(b"\n") * COPIES
    assert (report["records_in"], report["rows_out"], report["rows_failed"]) == (rows, rows, 0)
    assert report["bytes_read"] == len(ROWS) * COPIES
    if len(peaks_mb) > 10:
        # The first tenth of the run fills all windows.
        assert max(peaks_mb) - peaks_mb[len(peaks_mb) // 10] < GROWTH_MB_MAX
    assert report["peak_memory_mb"] < 300


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
