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

from levels import by_level, soaking

ROWS = b"".join(b"%7d,%s\n" % (number, b"word " * 400) for number in range(2_000))
"""The rows that the server repeats, of 2 KB each."""
COPIES = by_level(5, 50, 25_000)
"""The number of repetitions: 100 GB at the level soak."""
GROWTH_MB_MAX = 30

MODEL = """
import numpy as np

import headrace

class Size(headrace.Model):
    inputs = (headrace.TensorSpec("text", "BYTES", (-1,)),)

    def predict(self, text):
        return {"characters": np.array([len(row) for row in text], np.int64)}
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
    options = ["--format", "line", "--output", "o/", "--json"]
    command = [sys.executable, "-m", "headrace", "stream", url, "--model", "m.py", *options]
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
    if soaking():
        # The first tenth of the run fills all windows; shorter runs end before that.
        assert max(peaks_mb) - peaks_mb[len(peaks_mb) // 10] < GROWTH_MB_MAX
    assert report["peak_memory_mb"] < 300


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
