"""The `stream` and `transform` kinds: runs that any attempt can resume, by their own ledger."""

from collections.abc import Callable
from typing import Final

from typing_extensions import override

from headrace.core.errors import ConfigError, DataError
from headrace.jobs.attempt import Attempt
from headrace.jobs.job import JobProgress, NewJob, ResultRef
from headrace.jobs.kind import AttemptPredictor, KindRunner, Models
from headrace.reports.report import REPORT_NAME, Report
from headrace.runs.parts import check_folder
from headrace.runs.run import Run
from headrace.runs.runner import InProcessRunner, Locality
from headrace.runs.settings import RunSettings
from headrace.storage.resolve import Stores

REPORT_TYPE: Final = "application/json"


class RunJobs(KindRunner):
    """The runner of `stream` or `transform` jobs. The result is the run's report, beside its output.

    Args:
        models: The models of the worker.
        stores: The object stores.
        read_settings: The function that returns the settings of a job.
    """

    def __init__(
        self, models: Models, stores: Stores, read_settings: Callable[[NewJob], RunSettings]
    ) -> None:
        self._models = models
        self._stores = stores
        self._read_settings = read_settings

    @override
    def run(self, attempt: Attempt) -> ResultRef:
        """Run the job. Any attempt writes the same bytes and resumes where the last one stopped."""
        spec = attempt.job.spec
        if not spec.output_uri:
            raise ConfigError("the job needs an output_uri: a folder or prefix for its predictions")
        settings = self._read_settings(spec)
        predictor = AttemptPredictor(self._models.predictor(spec.model))
        runner = None
        if settings.per_object:
            runner = InProcessRunner(predictor, Locality(attempt.job.worker_region or None))
        else:
            check_folder(spec.output_uri, self._stores, settings)
        run = Run(
            spec.input_uri,
            spec.output_uri,
            stores=self._stores,
            predictor=None if runner else predictor,
            runner=runner,
            settings=settings,
            model_identity=self._models.identity(spec.model),
            if_exists="resume",
            model_reference={"model": spec.model},
            region_of=_input_region(spec),
        )
        bind_to_attempt(attempt, run, predictor)
        report = run.execute()
        attempt.raise_if_stopped()
        _refuse_without_output(report)
        return ResultRef(run.destination + REPORT_NAME, None, REPORT_TYPE)

    @override
    def discard(self, attempt: Attempt) -> None:
        """Do nothing: the next attempt resumes from the written output."""


def _input_region(spec: NewJob) -> Callable[[str], str | None]:
    """Return a function from a URI to its region. The job knows the region of its input only."""
    return lambda uri: None if uri.startswith(spec.output_uri or "") else spec.region or None


def bind_to_attempt(attempt: Attempt, run: Run, predictor: AttemptPredictor) -> None:
    """Report the run's progress to the attempt, and drain it when the attempt stops."""

    def how_far() -> JobProgress:
        progress, plan = run.progress, run.plan
        note = failed_note(progress.rows_failed)
        if plan is None:
            return JobProgress(unit="bytes", note=note)
        done = min(progress.bytes_read + progress.bytes_before, plan.nbytes)
        across = progress.bytes_read if attempt.job.across_regions else 0
        return JobProgress(done, plan.nbytes or None, "bytes", note, across)

    attempt.set_progress_source(how_far)
    predictor.stop_with(attempt, run.drain)


def failed_note(rows_failed: int) -> str:
    """Return the progress note about failed records."""
    return f"{rows_failed} records failed" if rows_failed else ""


def _refuse_without_output(report: Report) -> None:
    if report.status == "failed":
        raise DataError(
            f"{report.objects_suppressed} of {report.objects} objects have no output because some "
            f"of their records failed; see {report.output}{REPORT_NAME}"
        )
