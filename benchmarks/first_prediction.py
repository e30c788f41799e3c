"""Measure milliseconds from the first read to the delivery of the first prediction; the model is
loaded.

python benchmarks/first_prediction.py SOURCE MODEL.onnx
"""

import json
import sys
import time

import headrace
from headrace.storage.resolve import Stores


class TimedStores(Stores):
    """Stores that note the time of the first request for a store."""

    first_read_s: float | None = None

    def for_uri(self, uri):
        store = super().for_uri(uri)
        if self.first_read_s is None:
            self.first_read_s = time.perf_counter()
        return store


def main() -> None:
    source, model = sys.argv[1:]
    stores = TimedStores()
    with headrace.stream(source, model=model, stores=stores) as outcomes:
        next(iter(outcomes))
        first_s = time.perf_counter()
    print(json.dumps({"first_ms": round((first_s - stores.first_read_s) * 1000, 1)}))


if __name__ == "__main__":
    main()
