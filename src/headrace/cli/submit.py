"""``headrace submit``: submit a job and optionally wait for its result."""

import sys
from pathlib import Path
from typing import Any, get_args

import click

from headrace.cli.commands import JOB_SERVER_OPTIONS, complete_files, run_job_command
from headrace.cli.job_display import (
    exit_status,
    fetch_result,
    follow,
    print_submitted,
)
from headrace.cli.options import key_values, name_value_pairs, parse_json
from headrace.cli.submit_batch import submit_batch
from headrace.jobs.job import IF_EXISTS, Kind
from headrace.reports.report import one_line

_EPILOG = """\b
Examples:
  Submit a file and wait for its predictions:
    headrace submit rows.csv --model churn --wait > scores.csv
  Submit to an endpoint, which has the model and all limits:
    headrace submit rows.csv --endpoint churn --wait > scores.csv
  Submit inline data with a tag; the key prevents duplicate jobs:
    headrace submit --input '[[42, 3.5, 0]]' --model churn --tag day=2026-11-21 \\
        --idempotency-key day-21
  Submit an object with the highest priority and publish its result below a prefix:
    headrace submit s3://bucket/day.csv --model churn --output-uri s3://bucket/scored/ \\
        --priority 0
  Score a day again, and replace the result that the first job published:
    headrace submit s3://bucket/day.csv --model churn --output-uri s3://bucket/scored/ \\
        --key day --if-exists replace
  Prefer a worker in the region of the data:
    headrace submit s3://bucket-eu/day.csv --model churn --region eu-west-1
  Submit standard input, due in an hour, with a time limit of ten minutes:
    headrace submit - --content-type text/csv --model churn --delay-s 3600 \\
        --time-limit-s 600 < rows.csv
  Score a file after two jobs have completed:
    headrace submit rows.csv --model churn \\
        --after 019dd1ad-0000-7000-8000-000000000001 \\
        --after 019dd1ad-0000-7000-8000-000000000002
  Submit a job for each line of a file, which has the fields of a submission as JSON:
    headrace submit --batch jobs.jsonl --model churn --idempotency-key day-21 > ids.txt
  Print the job's id, for a script:
    headrace submit rows.csv --model churn --json | jq -r .id

\b
Exit status: 0 submitted, with --wait completed; 1 refused (with --batch any), failed, cancelled or expired;
2 wrong usage or an unknown model; 130 stopped by Ctrl-C, while the job continues.
"""
_FIELDS = (
    "endpoint",
    "kind",
    "queue",
    "content_type",
    "accept",
    "output_uri",
    "key",
    "if_exists",
    "region",
    "priority",
    "delay_s",
    "attempts_max",
    "time_limit_s",
    "time_to_live_s",
    "deadline_s",
    "correlation_id",
    "idempotency_key",
)
_SECONDS = click.FloatRange(min=0)


@click.command("submit", epilog=_EPILOG)
@click.argument("payload", required=False, shell_complete=complete_files)
@click.option("--model", "-m", default="", help="Model name, or NAME@VERSION.")
@click.option("--endpoint", "-e", help="Endpoint of the job; its settings replace options that are left out.")
@click.option(
    "--input", "-i", "inline_input", metavar="JSON", help="Payload as a JSON value, instead of PAYLOAD."
)
@click.option(
    "--batch",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True, exists=True),
    help="JSON Lines file with a job per line, instead of PAYLOAD; options are the defaults of all lines.",
)
@click.option("--all-or-nothing", is_flag=True, help="With --batch, submit no job if one is refused.")
@click.option("--kind", type=click.Choice(get_args(Kind)), help="Kind of the job.  [default: infer]")
@click.option("--queue", "-q", help="Queue of the job.  [default: default]")
@click.option("--content-type", help="Content type of the payload.  [default: by file name]")
@click.option("--accept", help="Content type of the result.")
@click.option("--output-uri", metavar="URI", help="Prefix below which the result is published as KEY.out.")
@click.option("--key", help="KEY of the published result.  [default: the job id]")
@click.option(
    "--if-exists",
    type=click.Choice(IF_EXISTS),
    help="If another job owns KEY: fail, replace its result, or add a version to the name.  [default: fail]",
)
@click.option(
    "--region",
    metavar="LABEL",
    help="Region of the data; workers in it take the job first.  [default: by the server's rules]",
)
@click.option(
    "--option",
    "-O",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the job's kind. Repeatable.",
)
@click.option(
    "--priority", type=click.IntRange(0, 9), help="Priority of the job, 0 to 9; 0 comes first.  [default: 5]"
)
@click.option("--delay-s", type=_SECONDS, help="Delay until the job is due, in seconds.")
@click.option("--attempts-max", type=click.IntRange(min=1), help="Limit of attempts.  [default: 3]")
@click.option("--time-limit-s", type=_SECONDS, help="Time limit of an attempt in seconds.")
@click.option(
    "--time-to-live-s", type=_SECONDS, help="Seconds after which a job that has not started expires."
)
@click.option("--deadline-s", type=_SECONDS, help="Seconds after which an unfinished job expires.")
@click.option(
    "--after",
    multiple=True,
    metavar="ID",
    help="Id of a job that must complete before this one begins. Repeatable.",
)
@click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="Tag of the job. Repeatable.")
@click.option("--notify", "notify", multiple=True, metavar="JSON", help="Notification target. Repeatable.")
@click.option("--correlation-id", help="Correlation id of the job, chosen by the client.")
@click.option("--idempotency-key", help="Key that makes repeated submissions return the same job.")
@click.option("--wait", "wait", is_flag=True, help="Wait until the job ends and print its result.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the result, with --wait.",
)
@JOB_SERVER_OPTIONS
def submit_command(**params: Any) -> None:
    """Submit a job for PAYLOAD: a file, - for standard input, or the URI of an object.

    The command prints the job's id, or with --wait the job's result. Large payloads are uploaded first.
    """
    if params["output"] is not None and not params["wait"]:
        raise click.UsageError("--output requires --wait")
    _check_batch(params)

    def call(client: Any) -> int:
        if params["batch"] is not None:
            defaults = job_fields(params) | ({"model": params["model"]} if params["model"] else {})
            return submit_batch(client, params["batch"], defaults, params=params)
        job = client.submit(params["model"], **_payload(params), **job_fields(params))
        for warning in job.warnings:
            click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {one_line(warning)}", err=True)
        if params["wait"]:
            return wait_for_result(client, job, params)
        print_submitted(job, json_lines=params["json_lines"])
        return 0

    run_job_command(params, call)


def _check_batch(params: dict[str, Any]) -> None:
    if params["batch"] is None:
        if params["all_or_nothing"]:
            raise click.UsageError("--all-or-nothing requires --batch")
        return
    others = {"payload": "PAYLOAD", "inline_input": "--input", "wait": "--wait", "key": "--key"}
    for name, shown in others.items():
        if params[name]:
            raise click.UsageError(f"give either --batch or {shown}")


def wait_for_result(client: Any, job: Any, params: dict[str, Any]) -> int:
    """Show a job until it ends, and print or save its result. Return the exit status."""
    json_lines = params["json_lines"]
    if not json_lines:
        click.echo(f"submitted {job.id}", err=True)
    try:
        ended = follow(client.events(job.id), json_lines=json_lines) or client.get(job.id)
    except KeyboardInterrupt:
        click.echo(f"the job continues: follow it with headrace jobs watch {job.id}", err=True)
        raise
    status = exit_status(ended)
    if not status and (params["output"] is not None or not json_lines):
        fetch_result(client, ended, params["output"])
    return status


def _payload(params: dict[str, Any]) -> dict[str, Any]:
    payload, text = params["payload"], params["inline_input"]
    if (payload is None) == (text is None):
        raise click.UsageError("give either PAYLOAD or --input")
    if text is not None:
        return {"input": parse_json(text, "--input")}
    if payload == "-":
        return {"input": sys.stdin.buffer.read()}
    return {"input_uri": payload} if "://" in payload else {"input": Path(payload)}


def job_fields(params: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a submission that the options give, without the model and the payload."""
    options: dict[str, Any] = {name: params[name] for name in _FIELDS if params.get(name) is not None}
    if params["options"]:
        options["options"] = key_values(params["options"], "--option")
    if params.get("after"):
        options["after"] = list(params["after"])
    if params["tags"]:
        options["tags"] = name_value_pairs(params["tags"], "--tag")
    if params["notify"]:
        options["notify"] = [parse_json(text, "--notify") for text in params["notify"]]
    return options
