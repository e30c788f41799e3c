"""``headrace jobs rerun``: run a job again, as a new job or in this process."""

import pdb  # noqa: T100 - for the user
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from headrace.cli.commands import JOB_SERVER_OPTIONS, complete_files, examples, run_job_command
from headrace.cli.job_display import print_submitted
from headrace.cli.logs import configure_logs
from headrace.cli.options import MODEL_OPTIONS_OPTION, model_options
from headrace.cli.submit import wait_for_result
from headrace.core.errors import ConfigError, PredictError
from headrace.jobs.job import Job

_COPIED: Final = (
    "content_type",
    "accept",
    "region",
    "priority",
    "attempts_max",
    "time_limit_s",
    "time_to_live_s",
    "deadline_s",
    "correlation_id",
)
"""The fields of a new job that are those of the first one, besides its input, model and options."""


@click.command(
    "rerun",
    epilog=examples(
        "headrace jobs rerun 01a2007b-f2f8-7916-a901-e223a26ee99e --wait",
        "headrace jobs rerun 01a2007b-f2f8-7916-a901-e223a26ee99e --local",
        "headrace jobs rerun 01a2007b-f2f8-7916-a901-e223a26ee99e --local --model churn.py --pdb",
    ),
)
@click.argument("job_id", metavar="ID")
@click.option("--local", is_flag=True, help="Run the job in this process instead of submitting it.")
@click.option(
    "--model",
    "-m",
    help="With --local, the MODEL.  [default: a file or folder here with the name of the job's model]",
    shell_complete=complete_files,
)
@MODEL_OPTIONS_OPTION
@click.option("--pdb", "debug", is_flag=True, help="With --local, debug the model where it fails.")
@click.option(
    "--output-uri",
    metavar="URI",
    help="Output of the rerun: required for a transform or stream; others publish nothing by default.",
)
@click.option("--wait", "wait", is_flag=True, help="Wait until the new job ends and print its result.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the result, with --wait or --local.",
)
@JOB_SERVER_OPTIONS
def rerun_command(job_id: str, **params: Any) -> None:
    """Run a job again with the same input, parameters and model.

    The new job has a tag `rerun_of` with the id of the first one, and no notifications. With --local,
    the job runs in this process, and breakpoints in the model work.
    """
    _check_options(params)

    def call(client: Any) -> int:
        job = client.get(job_id)
        with tempfile.TemporaryDirectory(prefix="headrace-rerun-") as folder:
            return (_run_here if params["local"] else _submit)(client, job, Path(folder), params)

    run_job_command(params, call)


def _check_options(params: dict[str, Any]) -> None:
    if params["local"]:
        unfit = {"wait": "--wait"}
    else:
        unfit = {"model": "--model", "model_options": "--option", "debug": "--pdb"}
        if params["output"] is not None and not params["wait"]:
            raise click.UsageError("--output requires --wait or --local")
    for name, shown in unfit.items():
        if params[name]:
            raise click.UsageError(f"{shown} {'does not fit' if params['local'] else 'requires'} --local")


def _output_uri(job: Job, params: dict[str, Any]) -> str:
    output_uri = params["output_uri"] or ""
    if job.spec.kind != "infer" and not output_uri:
        raise ConfigError(
            f"the job wrote to {job.spec.output_uri}, where its output is complete or would be resumed: "
            "give another --output-uri"
        )
    return output_uri


def _submit(client: Any, job: Job, folder: Path, params: dict[str, Any]) -> int:
    spec, output_uri = job.spec, _output_uri(job, params)
    options: dict[str, Any] = {"tags": {**spec.tags, "rerun_of": job.id}}
    options |= {name: value for name in _COPIED if (value := getattr(spec, name)) not in ("", None)}
    options |= {"options": dict(spec.options)} if spec.options else {}
    options |= {"output_uri": output_uri} if output_uri else {}
    if spec.endpoint:
        # The endpoint has the model, the queue and the kind, perhaps in a newer version.
        options["endpoint"] = spec.endpoint
    else:
        options |= {"kind": spec.kind, "queue": spec.queue}
    path = _save_payload(client, job, folder)
    payload: dict[str, Any] = {"input_uri": spec.input_uri} if path is None else {"input": path}
    again = client.submit("" if spec.endpoint else spec.model, **payload, **options)
    if params["wait"]:
        return wait_for_result(client, again, params)
    print_submitted(again, json_lines=params["json_lines"])
    return 0


def _run_here(client: Any, job: Job, folder: Path, params: dict[str, Any]) -> int:
    # The command runs without the packages of a model server otherwise.
    from headrace.app.rerun import rerun_here  # noqa: PLC0415

    configure_logs("text")
    model = params["model"] or _find_model(job.spec.model.partition("@")[0])
    spec = replace(job.spec, output_uri=_output_uri(job, params), key="")
    path = _save_payload(client, job, folder)
    if path is not None:
        spec = replace(spec, input_uri=str(path))
    on_error = _debug if params["debug"] else None
    try:
        result = rerun_here(
            replace(job, spec=spec), model, folder, model_options=model_options(params), on_error=on_error
        )
    except PredictError as error:
        if error.traceback is not None:
            click.echo(error.traceback.text, err=True)
        raise
    if params["output"] is None:
        with result.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    else:
        shutil.copyfile(result, params["output"])
    return 0


def _save_payload(client: Any, job: Job, folder: Path) -> Path | None:
    """Save the payload that is stored for a job. Return None for a job that reads an object of its client."""
    # The API does not show addresses in its own store.
    if job.spec.input_uri:
        return None
    path = folder / "payload"
    client.save_input(job.id, path)
    return path


def _find_model(name: str) -> str:
    """Return the one file or folder in the current folder with the name of a model."""
    found = sorted(str(path) for path in Path().iterdir() if name in (path.name, path.stem))
    if len(found) != 1:
        seen = f"has {', '.join(found)}" if found else "has none"
        raise ConfigError(f"the current folder {seen} for the job's model {name!r}: name one with --model")
    return found[0]


def _debug(error: BaseException) -> None:
    """Open the debugger where the model raised an error."""
    click.echo(f"{type(error).__name__}: {error}", err=True)
    pdb.post_mortem(error.__traceback__)
