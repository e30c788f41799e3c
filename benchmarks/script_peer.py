"""The usual script: a tar of CSV files, read with tarfile and csv, and one HTTP request for each
row.

    python benchmarks/script_peer.py ROWS.tar URL OUT.csv [--rows-max 2000]

SOURCE is a path, or s3:// if s3fs is installed. URL is a model's infer endpoint of the Open
Inference Protocol (``http://HOST:PORT/v2/models/NAME/infer``), or with --protocol torchserve its
``/predictions/NAME``. There is one connection, kept alive, as usual in such scripts.
"""

import argparse
import csv
import http.client
import json
import tarfile
import urllib.parse
from itertools import islice

from measure import Measurement


def open_source(source: str):
    """Return a binary file, local or in S3."""
    if source.startswith("s3://"):
        import s3fs

        return s3fs.S3FileSystem().open(source, "rb")
    return open(source, "rb")


def rows_of(file):
    """Yield every row of every CSV member, as the csv module returns it."""
    with tarfile.open(fileobj=file, mode="r|*") as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(".csv"):
                yield from csv.reader(line.decode() for line in tar.extractfile(member))


def oip_body(row):
    data = [float(cell) for cell in row]
    return {"inputs": [{"name": "x", "shape": [1, len(data)], "datatype": "FP32", "data": data}]}


def torchserve_body(row):
    return [float(cell) for cell in row]


def oip_prediction(response):
    return response["outputs"][0]["data"][0]


def torchserve_prediction(response):
    return response[0] if isinstance(response, list) else response


PROTOCOLS = {"oip": (oip_body, oip_prediction), "torchserve": (torchserve_body, torchserve_prediction)}


class Endpoint:
    """One connection that is kept alive."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.netloc, timeout=60)
        self._path = parts.path or "/"

    def request(self, body):
        self._connection.request(
            "POST", self._path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        response = self._connection.getresponse()
        data = response.read()
        if response.status != http.client.OK:
            raise SystemExit(f"the endpoint returned status {response.status}: {data[:200]!r}")
        return json.loads(data)


def score(source: str, url: str, destination: str, protocol: str, rows_max: int | None) -> int:
    """Score the archive. Return the number of rows."""
    body, prediction = PROTOCOLS[protocol]
    endpoint = Endpoint(url)
    rows = 0
    with open_source(source) as file, open(destination, "w", newline="") as out:
        writer = csv.writer(out)
        for row in islice(rows_of(file), rows_max):
            writer.writerow([*row, prediction(endpoint.request(body(row)))])
            rows += 1
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source")
    parser.add_argument("url")
    parser.add_argument("out")
    parser.add_argument("--protocol", choices=sorted(PROTOCOLS), default="oip")
    parser.add_argument("--rows-max", type=int, help="stop after so many rows: it is slow")
    arguments = parser.parse_args()
    measurement = Measurement()
    rows = score(arguments.source, arguments.url, arguments.out, arguments.protocol, arguments.rows_max)
    measurement.report(rows)


if __name__ == "__main__":
    main()
