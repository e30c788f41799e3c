"""Classify the images that JSON Lines refer to, with Apache Beam and a headrace model.

python examples/beam/classify_images.py RECORDS.jsonl --model digits.onnx --output s3://BUCKET/out/

Each line of RECORDS.jsonl (on ``s3://``, any other store, or disk) is a JSON object with the URI of
an ``image``. The pipeline writes the object to ``predictions-*.jsonl`` with its prediction, or to
``failures-*.jsonl`` with the reason of the failure. Further arguments are Beam's own, such as
``--runner=FlinkRunner``.
"""

import argparse
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import apache_beam as beam
import numpy as np
from apache_beam.ml.inference.base import KeyedModelHandler, PredictionResult, RunInference
from PIL import Image, UnidentifiedImageError

from headrace.beam import ModelHandler, SplitFailures
from headrace.core.errors import StorageError
from headrace.storage.resolve import Stores

SIZE_PX: Final = (8, 8)
FAILED: Final = "failed"

Line = tuple[int, str]
"""The number of a line in the input, and its text."""


class WithStores(beam.DoFn):
    """A step that reads or writes objects with the credentials of its worker's environment."""

    def setup(self) -> None:
        self.stores = Stores()

    def teardown(self) -> None:
        self.stores.close()


class ReadLines(WithStores):
    """A step that splits a file into numbered lines."""

    def process(self, uri: str) -> Iterator[Line]:
        text = self.stores.for_uri(uri).get(uri).decode()
        yield from ((number, line) for number, line in enumerate(text.splitlines()) if line.strip())


class Preprocess(WithStores):
    """A step that fetches and decodes a line's image and resizes it for the model.

    Pixels are numbers from 0 (paper) to 1 (ink). Lines that fail go to the output `FAILED`.
    """

    def process(self, line: Line) -> Iterator[Any]:
        try:
            uri = json.loads(line[1])["image"]
            data = self.stores.for_uri(uri).get(uri)
            yield line, pixels(data)
        except (
            OSError,
            StorageError,
            TypeError,
            KeyError,
            ValueError,
            Image.DecompressionBombError,
        ) as error:
            yield beam.pvalue.TaggedOutput(FAILED, failure(line, f"{type(error).__name__}: {error}"))


def pixels(data: bytes) -> np.ndarray:
    """Return an image file as the model's input: float32, [64]."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            grey = image.convert("L").resize(SIZE_PX, Image.Resampling.BILINEAR)
    except UnidentifiedImageError:
        raise ValueError("the object is not an image") from None
    return 1 - np.asarray(grey, np.float32).ravel() / 255


def prediction(result: tuple[Line, PredictionResult]) -> Line:
    """Return the record with its prediction."""
    (number, text), predictions = result
    probabilities = predictions.inference["probabilities"]
    predicted = {
        "predicted": int(predictions.inference["label"]),
        "probability": round(float(probabilities.max()), 6),
    }
    return number, json.dumps({**json.loads(text), **predicted})


def refused(result: tuple[Line, PredictionResult]) -> Line:
    """Return a record that the model refused, as a failure."""
    return failure(result[0], result[1].inference.why)


def failure(line: Line, why: str) -> Line:
    """Return a line without a prediction, with its number, its text and the reason."""
    return line[0], json.dumps({"line": line[0] + 1, "why": why, "record": line[1]})


class WriteShard(WithStores):
    """A step that writes all lines of one shard as one object, in the order of the input.

    A repeated step writes the same object again.
    """

    def __init__(self, prefix: str, shards: int) -> None:
        self.prefix = prefix
        self.shards = shards

    def process(self, shard: tuple[int, Iterable[Line]]) -> None:
        number, lines = shard
        uri = f"{self.prefix}-{number:05}-of-{self.shards:05}.jsonl"
        text = "".join(f"{line}\n" for _, line in sorted(lines))
        self.stores.for_uri(uri).put(uri, text.encode())


def write(lines: Any, prefix: str, shards: int) -> None:
    """Write lines as `shards` objects."""
    name = prefix.rpartition("/")[2]
    _ = (
        lines
        | f"Shards of {name}" >> beam.Map(lambda line: (zlib.crc32(b"%d" % line[0]) % shards, line))
        | f"Group {name}" >> beam.GroupByKey()
        | f"Write {name}" >> beam.ParDo(WriteShard(prefix, shards))
    )


def build(pipeline: beam.Pipeline, source: str, model: str, output: str, shards: int) -> None:
    """Build the pipeline: read, preprocess, infer, postprocess, write."""
    images = (
        pipeline
        | "Input" >> beam.Create([source])
        | "ReadLines" >> beam.ParDo(ReadLines())
        | "Spread" >> beam.Reshuffle()
        | "Preprocess" >> beam.ParDo(Preprocess()).with_outputs(FAILED, main="images")
    )
    # The line is the key of its image and connects the prediction with the record.
    handler = KeyedModelHandler(ModelHandler(model, failures="return"))
    parted = images["images"] | "Predict" >> RunInference(handler) | SplitFailures()
    predictions = parted.predictions | "Postprocess" >> beam.Map(prediction)
    failures = (images[FAILED], parted.failures | "Refused" >> beam.Map(refused)) | beam.Flatten()
    write(predictions, f"{output.rstrip('/')}/predictions", shards)
    write(failures, f"{output.rstrip('/')}/failures", 1)


def main() -> None:
    """Run the pipeline and print the number of records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", help="JSON Lines file: s3://, any other store, or a path")
    parser.add_argument("--model", required=True, help="model file on the workers, or s3:// URI")
    parser.add_argument("--output", required=True, help="prefix or folder of the output")
    parser.add_argument("--shards", type=int, default=2, help="number of prediction objects (default 2)")
    arguments, for_beam = parser.parse_known_args()
    if not any(argument.startswith("--runner") for argument in for_beam):
        for_beam.append("--runner=FnApiRunner")  # in this process
    pipeline = beam.Pipeline(argv=for_beam)
    build(pipeline, arguments.source, arguments.model, arguments.output, arguments.shards)
    done = pipeline.run()
    done.wait_until_finish()
    counters = {counter.key.metric.name: counter.committed for counter in done.metrics().query()["counters"]}
    classified, refused_images = (counters.get(f"{name}_inferences", 0) for name in ("num", "failed"))
    print(f"{classified} images classified, {refused_images} refused")


if __name__ == "__main__":
    main()
