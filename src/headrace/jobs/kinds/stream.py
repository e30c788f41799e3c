"""The `stream` kind: a source into parts, in order, resumable by the run's own ledger beside them."""

import orjson

from headrace.core.errors import ConfigError
from headrace.jobs.attempt import Attempt
from headrace.jobs.job import Progress, ResultRef
from headrace.jobs.kind import AttemptPredictor, Models
from headrace.jobs.kinds.transform import REPORT_TYPE, failed_note
from headrace.jobs.kinds.words import stream_settings
from headrace.pipeline.run import Run
from headrace.storage.resolve import Stores
from headrace.transforms.report import REPORT_NAME


class StreamKind:
    """Implements `KindRunner`. The result is the run's report, put beside its parts."""

    def __init__(self, models: Models, stores: Stores) -> None:
        self._models = models
        self._stores = stores

    def run(self, attempt: Attempt) -> ResultRef:
        """See `KindRunner.run`. What it writes is the same whoever does it, and goes on where it was."""
        spec = attempt.job.spec
        if not spec.output_uri:
            raise ConfigError("a stream needs an output_uri: a folder or prefix for its parts")
        predictor = AttemptPredictor(self._models.predictor(spec.model))
        run = Run(
            spec.input_uri,
            spec.output_uri,
            stores=self._stores,
            predictor=predictor,
            settings=stream_settings(spec),
            model_identity=self._models.identity(spec.model),
            if_exists="resume",
        )

        attempt.report(lambda: _how_far(attempt, run))
        predictor.end_with(attempt, run.drain)
        report = run.execute()
        attempt.check()
        uri = run.destination + REPORT_NAME
        text = orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2)
        self._stores.for_uri(uri).put(uri, text)
        return ResultRef(uri, len(text), REPORT_TYPE)

    def discard(self, attempt: Attempt) -> None:
        """Nothing: what was written is what the next attempt goes on from."""


def _how_far(attempt: Attempt, run: Run) -> Progress:
    progress = run.progress
    done = progress.bytes_read + progress.bytes_before
    across = progress.bytes_read if attempt.job.across_regions else 0
    return Progress(done, progress.bytes_total or None, "bytes", failed_note(progress.rows_failed), across)
