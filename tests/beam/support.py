"""Models as files, pipelines that run in this process, and what of results can be compared."""

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
        bad = {{int(row): "it is negative" for row in np.flatnonzero((x < 0).reshape(len(x), -1).any(axis=1))}}
        if bad:
            raise RowError(bad)
        return x + {by}
"""


def write_model(folder, name: str = "plus", by: int = 1, rows: int = 8) -> str:
    """A model of one input that adds a number, and refuses what is negative; its name."""
    path = folder / f"{name}.py"
    path.write_text(MODEL.format(by=by, rows=rows))
    return str(path)


_FOUND: dict[int, list] = {}
_NUMBERS = itertools.count()


@contextmanager
def pipeline(**options):
    """Runs at its end, in this process, and has then given what `gives` and `holds` say. Its `result` has the metrics."""
    # The runner by its name: "DirectRunner" looks for Prism first, a program that it fetches.
    made = beam.Pipeline(runner="FnApiRunner", options=PipelineOptions([], **options))
    made.expected = []
    with made:
        yield made
    for number, expected, seen_as in made.expected:
        assert sorted(map(seen_as, _FOUND.pop(number)), key=repr) == sorted(expected, key=repr)


def created(p, elements):
    """A PCollection of the elements, which stay in one bundle."""
    return p | f"create {next(_NUMBERS)}" >> beam.Create(elements, reshuffle=False)


def gives(pcoll, expected, seen_as=lambda element: element) -> None:
    """Say what a PCollection will have, in any order. Beam's own `assert_that` takes four times as long."""
    number = next(_NUMBERS)
    _FOUND[number] = []
    pcoll.pipeline.expected.append((number, expected, seen_as))
    _ = pcoll | f"found {number}" >> beam.Map(_found, number)


def _found(element, number: int) -> None:
    _FOUND[number].append(element)


def holds(results, expected) -> None:
    """Say what a PCollection of results will have, see `plain`."""
    gives(results, expected, plain)


def rows(*values: float) -> list[np.ndarray]:
    return [np.array([value], np.float32) for value in values]


def plain(result):
    """Of a result, keyed or not: what went in and what came out, as numbers; of a failure, its reason."""
    if not hasattr(result, "inference"):
        return (result[0], plain(result[1]))
    example = result.example if isinstance(result.example, np.ndarray) else result.example["x"]
    inference = result.inference
    return (
        float(np.ravel(example)[0]),
        inference.why if hasattr(inference, "why") else float(inference["output"][0]),
    )


def metrics(done, namespace: str) -> dict[str, object]:
    """Counters as numbers, distributions as what they are."""
    found = done.metrics().query(MetricsFilter().with_namespace(namespace))
    counters = {one.key.metric.name: one.committed for one in found["counters"]}
    return counters | {one.key.metric.name: one.committed for one in found["distributions"]}
