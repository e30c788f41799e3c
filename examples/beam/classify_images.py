"""JSON Lines that name images, to JSON Lines that say what is on them: with Apache Beam and a model of headrace's.

python examples/beam/classify_images.py s3://BUCKET/digits/records.jsonl --model digits.onnx --output s3://BUCKET/out/

Each line of the input is a JSON object with an ``image``, a URI. It comes back as a line of ``predictions-*.jsonl``, with what the model says, or
of ``failures-*.jsonl``, with what went wrong. Further arguments are Beam's own, such as ``--runner=FlinkRunner``.
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
"""A line's number in the input, and its text."""


class WithStores(beam.DoFn):
    """A step that reads or writes objects, with the credentials of its worker's environment."""

    def setup(self) -> None:
        self.stores = Stores()

    def teardown(self) -> None:
        self.stores.close()


class ReadLines(WithStores):
    """A file's lines, numbered."""

    def process(self, uri: str) -> Iterator[Line]:
        text = self.stores.for_uri(uri).get(uri).decode()
        yield from ((number, line) for number, line in enumerate(text.splitlines()) if line.strip())


class Preprocess(WithStores):
    """Of a line its image: fetched, decoded, of the model's size, as numbers from 0 (paper) to 1 (ink). What fails goes its own way."""

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
    """An image file as the model takes it: float32, [64]."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            grey = image.convert("L").resize(SIZE_PX, Image.Resampling.BILINEAR)
    except UnidentifiedImageError:
        raise ValueError("what is there is no image") from None
    return 1 - np.asarray(grey, np.float32).ravel() / 255


def prediction(result: tuple[Line, PredictionResult]) -> Line:
    """The record, with what the model says."""
    (number, text), found = result
    probabilities = found.inference["probabilities"]
    said = {"predicted": int(found.inference["label"]), "probability": round(float(probabilities.max()), 6)}
    return number, json.dumps({**json.loads(text), **said})


def refused(result: tuple[Line, PredictionResult]) -> Line:
    """The record that the model refused."""
    return failure(result[0], result[1].inference.why)


def failure(line: Line, why: str) -> Line:
    """A line that gets no prediction, as it stands, and why."""
    return line[0], json.dumps({"line": line[0] + 1, "why": why, "record": line[1]})


class WriteShard(WithStores):
    """All lines of one shard as one object, in the order of the input: a step that is repeated writes the same again."""

    def __init__(self, prefix: str, shards: int) -> None:
        self.prefix = prefix
        self.shards = shards

    def process(self, shard: tuple[int, Iterable[Line]]) -> None:
        number, lines = shard
        uri = f"{self.prefix}-{number:05}-of-{self.shards:05}.jsonl"
        text = "".join(f"{line}\n" for _, line in sorted(lines))
        self.stores.for_uri(uri).put(uri, text.encode())


def write(lines: Any, prefix: str, shards: int) -> None:
    """Lines as so many objects."""
    name = prefix.rpartition("/")[2]
    _ = (
        lines
        | f"Shards of {name}" >> beam.Map(lambda line: (zlib.crc32(b"%d" % line[0]) % shards, line))
        | f"Group {name}" >> beam.GroupByKey()
        | f"Write {name}" >> beam.ParDo(WriteShard(prefix, shards))
    )


def build(pipeline: beam.Pipeline, source: str, model: str, output: str, shards: int) -> None:
    """The pipeline: read, preprocess, infer, postprocess, write."""
    images = (
        pipeline
        | "Input" >> beam.Create([source])
        | "ReadLines" >> beam.ParDo(ReadLines())
        | "Spread" >> beam.Reshuffle()
        | "Preprocess" >> beam.ParDo(Preprocess()).with_outputs(FAILED, main="images")
    )
    # The key of an image is its line, so that a prediction finds back to it.
    handler = KeyedModelHandler(ModelHandler(model, failures="return"))
    parted = images["images"] | "Predict" >> RunInference(handler) | SplitFailures()
    predictions = parted.predictions | "Postprocess" >> beam.Map(prediction)
    failures = (images[FAILED], parted.failures | "Refused" >> beam.Map(refused)) | beam.Flatten()
    write(predictions, f"{output.rstrip('/')}/predictions", shards)
    write(failures, f"{output.rstrip('/')}/failures", 1)


def main() -> None:
    """Run it, and say how many records there were."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", help="JSON Lines: s3://, any other store, or a file")
    parser.add_argument("--model", required=True, help="on the workers, or s3://")
    parser.add_argument("--output", required=True, help="a prefix or folder")
    parser.add_argument("--shards", type=int, default=2, help="objects of predictions (default 2)")
    given, for_beam = parser.parse_known_args()
    if not any(argument.startswith("--runner") for argument in for_beam):
        for_beam.append("--runner=FnApiRunner")  # in this process
    pipeline = beam.Pipeline(argv=for_beam)
    build(pipeline, given.source, given.model, given.output, given.shards)
    done = pipeline.run()
    done.wait_until_finish()
    counters = {one.key.metric.name: one.committed for one in done.metrics().query()["counters"]}
    print(f"{counters.get('num_inferences', 0)} images asked, {counters.get('failed_inferences', 0)} refused")


if __name__ == "__main__":
    main()
