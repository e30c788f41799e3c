"""The `transform` kind: a batch transform that any attempt can resume."""

from collections.abc import Callable
from typing import Final

from typing_extensions import override

from headrace.core.errors import ConfigError, DataError
from headrace.jobs.attempt import Attempt
from headrace.jobs.job import JobProgress, NewJob, ResultRef
from headrace.jobs.kind import AttemptPredictor, KindRunner, Models
from headrace.jobs.kinds.options import transform_settings
from headrace.runs.locality import Locality
from headrace.runs.report import REPORT_NAME, TransformReport
from headrace.runs.run import Transform
from headrace.runs.runner import InProcessRunner
from headrace.storage.resolve import Stores

REPORT_TYPE: Final = "application/json"


class TransformKind(KindRunner):
    """The runner of `transform` jobs. The result is the transform's report, beside its output."""

    def __init__(self, models: Models, stores: Stores) -> None:
        self._models = models
        self._stores = stores

    @override
    def run(self, attempt: Attempt) -> ResultRef:
        """Run the transform.

        Any attempt writes the same bytes and resumes where the last one stopped.
        """
        spec = attempt.job.spec
        if not spec.output_uri:
            raise ConfigError("a transform needs an output_uri: a folder or prefix for its predictions files")
        predictor = AttemptPredictor(self._models.predictor(spec.model))
        transform = Transform(
            spec.input_uri,
            spec.output_uri,
            stores=self._stores,
            runner=InProcessRunner(predictor, Locality(attempt.job.worker_region or None)),
            settings=transform_settings(spec),
            model_identity=self._models.identity(spec.model),
            if_exists="resume",
            model_reference={"model": spec.model},
            region_of=_input_region(spec),
        )
        bind_to_attempt(attempt, transform, predictor)
        report = transform.execute()
        attempt.raise_if_stopped()
        _refuse_without_output(report)
        return ResultRef(transform.destination + REPORT_NAME, None, REPORT_TYPE)

    @override
    def discard(self, attempt: Attempt) -> None:
        """Do nothing: the next attempt resumes from the written output."""


def _input_region(spec: NewJob) -> Callable[[str], str | None]:
    """Return a function from a URI to its region. The job knows the region of its input only."""
    return lambda uri: None if uri.startswith(spec.output_uri or "") else spec.region or None


def bind_to_attempt(attempt: Attempt, transform: Transform, predictor: AttemptPredictor) -> None:
    """Report the transform's progress to the attempt, and drain it when the attempt stops."""

    def how_far() -> JobProgress:
        progress, plan = transform.progress, transform.plan
        note = failed_note(progress.rows_failed)
        if plan is None:
            return JobProgress(unit="bytes", note=note)
        done = min(progress.bytes_read + progress.bytes_before, plan.nbytes)
        across = progress.bytes_read if attempt.job.across_regions else 0
        return JobProgress(done, plan.nbytes, "bytes", note, across)

    attempt.set_progress_source(how_far)
    predictor.stop_with(attempt, transform.drain)


def failed_note(rows_failed: int) -> str:
    """Return the progress note about failed records."""
    return f"{rows_failed} records failed" if rows_failed else ""


def _refuse_without_output(report: TransformReport) -> None:
    if report.status == "failed":
        raise DataError(
            f"{report.objects_suppressed} of {report.objects} objects have no output because some "
            f"of their records failed; see {report.output}{REPORT_NAME}"
        )
