"""``headrace submit``: one job, and what came of it where that is waited for."""

import sys
from pathlib import Path
from typing import Any, get_args

import click
import orjson

from headrace.cli.job_server import ask_jobs, job_server_options
from headrace.cli.key_values import key_values
from headrace.core.errors import ConfigError
from headrace.jobs.job import Kind

_EPILOG = """\b
Examples:
  A file, and its predictions when they are there:
    headrace submit rows.csv --model churn --wait > scores.csv
  Inline, found again by a tag; at most one job by this key, however often it is run:
    headrace submit --input '[[42, 3.5, 0]]' --model churn --tag day=2026-11-21 --idempotency-key day-21
  An object that is in a bucket already, its result published beside it, before all others:
    headrace submit s3://bucket/day.csv --model churn --output-uri s3://bucket/scored/ --priority 0
  By a worker beside the data, if there is one:
    headrace submit s3://bucket-eu/day.csv --model churn --region eu-west-1
  Later, for at most ten minutes; from standard input:
    headrace submit - --content-type text/csv --model churn --delay-s 3600 --time-limit-s 600 < rows.csv
  For a script:
    headrace submit rows.csv --model churn --json | jq -r .id

\b
Exit status: 0 submitted, with --wait completed; 1 refused, or failed, cancelled or expired; 2 wrong usage; 130 stopped
by Ctrl-C: the job goes on.
"""
_FIELDS = (
    "kind", "queue", "content_type", "accept", "output_uri", "key", "region", "priority", "delay_s", "attempts_max",
    "time_limit_s", "time_to_live_s", "deadline_s", "correlation_id", "idempotency_key",
)  # fmt: skip
_SECONDS = click.FloatRange(min=0)


@click.command("submit", epilog=_EPILOG, short_help="Submit a job.")
@click.argument("payload", required=False)
@click.option("--model", "-m", default="", help="The model's name, with @ and a version where one is meant.")
@click.option("--input", "-i", "given_input", metavar="JSON", help="In place of PAYLOAD: a value.")
@click.option("--kind", type=click.Choice(get_args(Kind)), help="[default: infer]")
@click.option("--queue", "-q", help="[default: default]")
@click.option("--content-type", help="How to read the payload; a file's name tells it otherwise.")
@click.option("--accept", help="How to write the result, by its content type.")
@click.option("--output-uri", metavar="URI", help="A prefix to publish the result below, as KEY.out.")
@click.option("--key", help="The KEY in KEY.out.  [default: the job's id]")
@click.option(
    "--region",
    metavar="LABEL",
    help="Where its data lives: workers there go first.  [default: the server's rules]",
)
@click.option(
    "--option", "-O", "options", multiple=True, metavar="KEY=VALUE", help="Of its kind; may be repeated."
)
@click.option("--priority", type=click.IntRange(0, 9), help="0 is taken first.  [default: 5]")
@click.option("--delay-s", type=_SECONDS, help="It becomes due so much later.")
@click.option("--attempts-max", type=click.IntRange(min=1), help="[default: 3]")
@click.option("--time-limit-s", type=_SECONDS, help="The longest that one attempt may take.")
@click.option("--time-to-live-s", type=_SECONDS, help="It expires unless it is begun by then.")
@click.option("--deadline-s", type=_SECONDS, help="It expires unless it is done by then.")
@click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="To find it by; may be repeated.")
@click.option("--notify", "notify", multiple=True, metavar="JSON", help="Whom to tell; may be repeated.")
@click.option("--correlation-id", help="Your own name for it.")
@click.option("--idempotency-key", help="The same key and submission are the same job.")
@click.option("--wait", "waited", is_flag=True, help="Until it has ended, and then for its result.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --wait: save the result there.",
)
@job_server_options
def submit_command(**given: Any) -> None:
    """Submit a job that works on PAYLOAD: a file, - for standard input, or the URI of an object.

    Its id is on standard output; with --wait its result is. Large payloads are uploaded first.
    """
    if given["output"] is not None and not given["waited"]:
        raise click.UsageError("--output is for the result, which is there with --wait")

    def ask(client: Any) -> int:
        job = client.submit(given["model"], **_payload(given), **_options(given))
        if given["waited"]:
            return _wait(client, job, given)
        if given["json_lines"]:
            from headrace.cli.job_shown import say_job_json  # noqa: PLC0415 - see cli.infer

            say_job_json(job)
        else:
            click.echo(job.id)
        return 0

    ask_jobs(given, ask)


def _wait(client: Any, job: Any, given: dict[str, Any]) -> int:
    from headrace.cli.job_results import exit_status, fetch_result  # noqa: PLC0415 - see cli.infer
    from headrace.cli.job_shown import follow  # noqa: PLC0415

    json_lines = given["json_lines"]
    if not json_lines:
        click.echo(f"submitted {job.id}", err=True)
    try:
        ended = follow(client.events(job.id), json_lines=json_lines) or client.get(job.id)
    except KeyboardInterrupt:
        click.echo(f"the job goes on: headrace jobs watch {job.id}", err=True)
        raise
    status = exit_status(ended)
    if not status and (given["output"] is not None or not json_lines):
        fetch_result(client, ended, given["output"])
    return status


def _payload(given: dict[str, Any]) -> dict[str, Any]:
    payload, text = given["payload"], given["given_input"]
    if (payload is None) == (text is None):
        raise click.UsageError("give a PAYLOAD, or --input")
    if text is not None:
        try:
            return {"input": orjson.loads(text)}
        except orjson.JSONDecodeError as error:
            raise ConfigError(f"--input is not JSON: {error}") from None
    if payload == "-":
        return {"input": sys.stdin.buffer.read()}
    return {"input_uri": payload} if "://" in payload else {"input": Path(payload)}


def _options(given: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {name: given[name] for name in _FIELDS if given[name] is not None}
    if given["options"]:
        options["options"] = key_values(given["options"], "--option")
    if given["tags"]:
        options["tags"] = pairs(given["tags"], "--tag")
    if given["notify"]:
        options["notify"] = [_json_object(text) for text in given["notify"]]
    return options


def pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """``NAME=VALUE`` options whose values are text, whatever they look like. ConfigError for what is no pair."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{option} {text!r} must be NAME=VALUE")
        found[name] = value
    return found


def _json_object(text: str) -> dict[str, Any]:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--notify is not JSON: {error}") from None
