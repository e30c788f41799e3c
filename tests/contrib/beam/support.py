"""Models as files, pipelines in this process, and comparable summaries of results."""

import itertools
from contextlib import contextmanager

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

MODEL = """\
import numpy as np
from headrace import Model, RowError


class Plus(Model):
    max_batch_rows = {rows}

    def predict(self, x):
        negative = (x < 0).reshape(len(x), -1).any(axis=1)
        bad = {{int(row): "it is negative" for row in np.flatnonzero(negative)}}
        if bad:
            raise RowError(bad)
        return x + {by}
"""


def write_model(folder, name: str = "plus", by: int = 1, rows: int = 8) -> str:
    """Write a model that adds a number to its one input and refuses negative values.

    Return its path.
    """
    path = folder / f"{name}.py"
    path.write_text(MODEL.format(by=by, rows=rows))
    return str(path)


_RECORDED: dict[int, list] = {}
_NUMBERS = itertools.count()


@contextmanager
def pipeline(**options):
    """Run a pipeline in this process, and check the results of `expect` and `expect_results` at its
    end.

    The pipeline's `result` has the metrics.
    """
    # "DirectRunner" would look for Prism first, and download it.
    p = beam.Pipeline(runner="FnApiRunner", options=PipelineOptions([], **options))
    p.expected = []
    with p:
        yield p
    for number, expected, transform in p.expected:
        assert sorted(map(transform, _RECORDED.pop(number)), key=repr) == sorted(expected, key=repr)


def create(p, elements):
    """Return a PCollection of the elements in one bundle."""
    return p | f"create {next(_NUMBERS)}" >> beam.Create(elements, reshuffle=False)


def expect(pcoll, expected, transform=lambda element: element) -> None:
    """Expect elements in a PCollection, in any order.

    Beam's own `assert_that` takes four times as long.
    """
    number = next(_NUMBERS)
    _RECORDED[number] = []
    pcoll.pipeline.expected.append((number, expected, transform))
    _ = pcoll | f"found {number}" >> beam.Map(_record, number)


def _record(element, number: int) -> None:
    _RECORDED[number].append(element)


def expect_results(results, expected) -> None:
    """Expect results in a PCollection, compared by `summarize`."""
    expect(results, expected, summarize)


def rows(*values: float) -> list[np.ndarray]:
    return [np.array([value], np.float32) for value in values]


def summarize(result):
    """Return the input and output of a result, keyed or not, as numbers; the reason of a failure."""
    if not hasattr(result, "inference"):
        return (result[0], summarize(result[1]))
    example = result.example if isinstance(result.example, np.ndarray) else result.example["x"]
    inference = result.inference
    return (
        float(np.ravel(example)[0]),
        inference.why if hasattr(inference, "why") else float(inference["output"][0]),
    )


def read_metrics(result, namespace: str) -> dict[str, object]:
    """Return counters as numbers, and distributions, by name."""
    found = result.metrics().query(MetricsFilter().with_namespace(namespace))
    counters = {counter.key.metric.name: counter.committed for counter in found["counters"]}
    return counters | {counter.key.metric.name: counter.committed for counter in found["distributions"]}
