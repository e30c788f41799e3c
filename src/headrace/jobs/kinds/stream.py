"""The `stream` kind: a source into parts, in order, resumable by the run's own ledger beside them."""

import orjson
from typing_extensions import override

from headrace.core.errors import ConfigError
from headrace.jobs.attempt import Attempt
from headrace.jobs.job import JobProgress, ResultRef
from headrace.jobs.kind import AttemptPredictor, KindRunner, Models
from headrace.jobs.kinds.options import stream_settings
from headrace.jobs.kinds.transform import REPORT_TYPE, failed_note
from headrace.runs.destination import check_folder
from headrace.runs.report import REPORT_NAME
from headrace.runs.stream_run import Run
from headrace.storage.resolve import Stores


class StreamKind(KindRunner):
    """The runner of `stream` jobs. The result is the run's report, beside its parts."""

    def __init__(self, models: Models, stores: Stores) -> None:
        self._models = models
        self._stores = stores

    @override
    def run(self, attempt: Attempt) -> ResultRef:
        """Run the stream. Any attempt writes the same bytes and resumes where the last one stopped."""
        spec = attempt.job.spec
        if not spec.output_uri:
            raise ConfigError("a stream needs an output_uri: a folder or prefix for its parts")
        settings = stream_settings(spec)
        check_folder(spec.output_uri, self._stores, settings)
        predictor = AttemptPredictor(self._models.predictor(spec.model))
        run = Run(
            spec.input_uri,
            spec.output_uri,
            stores=self._stores,
            predictor=predictor,
            settings=settings,
            model_identity=self._models.identity(spec.model),
            if_exists="resume",
        )

        attempt.set_progress_source(lambda: _how_far(attempt, run))
        predictor.stop_with(attempt, run.drain)
        report = run.execute()
        attempt.raise_if_stopped()
        uri = run.destination + REPORT_NAME
        text = orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2)
        self._stores.for_uri(uri).put(uri, text)
        return ResultRef(uri, len(text), REPORT_TYPE)

    @override
    def discard(self, attempt: Attempt) -> None:
        """Do nothing: the next attempt resumes from the written parts."""


def _how_far(attempt: Attempt, run: Run) -> JobProgress:
    progress = run.progress
    done = progress.bytes_read + progress.bytes_before
    across = progress.bytes_read if attempt.job.across_regions else 0
    return JobProgress(done, progress.bytes_total or None, "bytes", failed_note(progress.rows_failed), across)
