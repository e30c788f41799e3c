"""A job run again in this process, with a model of this machine: for debugging."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

from headrace.app.job_worker import ServedModels, job_kinds
from headrace.app.models import ServedModel, open_repository
from headrace.core.model import Model
from headrace.engine.repository import ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.engine.tracebacks import is_unexpected
from headrace.jobs.job import Job
from headrace.jobs.kinds import Attempt
from headrace.jobs.paths import JobPaths
from headrace.jobs.state import JobState
from headrace.storage.resolve import Stores


def rerun_here(
    job: Job,
    model: ServedModel,
    folder: Path,
    *,
    model_options: Mapping[str, Any] | None = None,
    on_error: Callable[[BaseException], None] | None = None,
) -> Path:
    """Run a job as its only attempt, and return the file of its result.

    `model` runs in a thread of this process, whatever its settings say, under the name that the job
    has for it. The result of an `infer` job is below `folder`; it is not published. The result of
    another job is its report, in its output. Nothing is retried, and no time limit applies.

    `on_error` is called with the first unexpected exception of the model, in the model's thread, before
    the model is called again.

    Raise what the attempt raises, and ConfigError for a model that cannot be found.
    """
    name = job.spec.model.partition("@")[0]
    found, _ = open_repository([model], ServeSettings(), model_options)
    definitions = [
        replace(
            each,
            name=name,
            make=each.make if on_error is None else partial(_make_observed, each.make, on_error),
            settings=replace(each.settings, isolation="thread"),
        )
        for each in found.definitions()
    ]
    repository = ModelRepository(definitions)
    spec = replace(job.spec, model=name)
    attempt = Attempt(replace(job, spec=spec, state=JobState.RUNNING, attempt=1, lease=1, cursor=None))
    stores = Stores()
    runner = job_kinds(ServedModels(repository), stores, JobPaths(str(folder / "store")))[spec.kind]
    repository.start()
    try:
        return Path(runner.run(attempt).uri)
    finally:
        repository.stop()


def _make_observed(make: Callable[[], Model], on_error: Callable[[BaseException], None]) -> Model:
    """Return a model that reports its first unexpected exception."""
    model = make()
    predict: Callable[..., Any] = model.predict
    reported: list[BaseException] = []

    @wraps(predict)
    def observed(*args: Any, **options: Any) -> Any:
        try:
            return predict(*args, **options)
        except Exception as error:
            if is_unexpected(error) and not reported:
                reported.append(error)
                on_error(error)
            raise

    model.predict = observed
    return model
