"""The `transform` kind: a batch transform whose own ledger, beside its output, lets any attempt go on where the last one was."""

from collections.abc import Callable
from typing import Final

from headrace.core.errors import ConfigError, DataError
from headrace.jobs.attempt import Attempt
from headrace.jobs.job import NewJob, Progress, ResultRef
from headrace.jobs.kind import AttemptPredictor, Models
from headrace.jobs.kinds.words import transform_settings
from headrace.storage.resolve import Stores
from headrace.transforms.locality import Locality
from headrace.transforms.report import REPORT_NAME, TransformReport
from headrace.transforms.run import Transform
from headrace.transforms.runner import InProcessRunner

REPORT_TYPE: Final = "application/json"


class TransformKind:
    """Implements `KindRunner`. The result is the transform's report, which stands beside what it wrote."""

    def __init__(self, models: Models, stores: Stores) -> None:
        self._models = models
        self._stores = stores

    def run(self, attempt: Attempt) -> ResultRef:
        """See `KindRunner.run`. What it writes is the same whoever does it, and goes on where it was."""
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
            made_with={"model": spec.model},
            region_of=_input_region(spec),
        )
        follow(attempt, transform, predictor)
        report = transform.execute()
        attempt.check()
        _refuse_without_output(report)
        return ResultRef(transform.destination + REPORT_NAME, None, REPORT_TYPE)

    def discard(self, attempt: Attempt) -> None:
        """Nothing: what was written is what the next attempt goes on from."""


def _input_region(spec: NewJob) -> Callable[[str], str | None]:
    """Where objects lie, as far as the job says so: it speaks of its input alone."""
    return lambda uri: None if uri.startswith(spec.output_uri or "") else spec.region or None


def follow(attempt: Attempt, transform: Transform, predictor: AttemptPredictor) -> None:
    """Have the attempt tell how far the transform is, and the transform end when the attempt is told to stop."""

    def how_far() -> Progress:
        progress, plan = transform.progress, transform.plan
        note = failed_note(progress.rows_failed)
        if plan is None:
            return Progress(unit="bytes", note=note)
        done = min(progress.bytes_read + progress.bytes_before, plan.nbytes)
        across = progress.bytes_read if attempt.job.across_regions else 0
        return Progress(done, plan.nbytes, "bytes", note, across)

    attempt.report(how_far)
    predictor.end_with(attempt, transform.drain)


def failed_note(rows_failed: int) -> str:
    """What a progress notes of failed records."""
    return f"{rows_failed} records failed" if rows_failed else ""


def _refuse_without_output(report: TransformReport) -> None:
    if report.status == "failed":
        raise DataError(
            f"{report.objects_withheld} of {report.objects} objects have no output, because records of theirs failed and the "
            f"options ask for that; {report.output}{REPORT_NAME} says which"
        )
