"""The options that select jobs by conditions, and actions on all jobs that match."""

from collections.abc import Callable
from typing import Any, Final

import click
import orjson

from headrace.cli.options import Command, combined_options, name_value_pairs
from headrace.jobs.actions import ACTION_STATES, JobAction
from headrace.jobs.bulk import BULK_JOBS_DEFAULT
from headrace.jobs.state import JobState

FILTER_OPTIONS = combined_options(
    click.option("--queue", "-q", default="", help="Queue of the jobs."),
    click.option("--model", "-m", default="", help="Model of the jobs."),
    click.option("--kind", default="", help="Kind of the jobs."),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        metavar="NAME=VALUE",
        help="Tag of the jobs. Repeatable; jobs need all tags.",
    ),
    click.option("--correlation-id", default="", help="Correlation id of the jobs."),
    click.option(
        "--fingerprint", default="", help="Fingerprint of the failure, as `headrace jobs failures` shows it."
    ),
    click.option("--tenant", help="Tenant of the jobs, for keys that see all tenants."),
)
_DONE: Final = {
    JobAction.CANCEL: "cancelled, or their cancellation requested",
    JobAction.RETRY: "retried",
    JobAction.REQUEUE: "requeued",
    JobAction.DELETE: "deleted",
}


def state_option(*states: JobState, default: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Return the option of the states that are named here."""
    return click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice([state.value for state in states]),
        default=default,
        show_default=bool(default),
        help="State of the jobs. Repeatable.",
    )


def bulk_options(action: JobAction, *, states: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Return the options of a command that changes all jobs that match. `states` are the default."""
    return combined_options(
        FILTER_OPTIONS,
        state_option(*sorted(ACTION_STATES[action]), default=states),
        click.option("--all", "all_jobs", is_flag=True, help="All jobs, without a condition."),
        click.option(
            "--limit",
            "-n",
            type=click.IntRange(min=1),
            default=BULK_JOBS_DEFAULT,
            show_default=True,
            help="Limit of jobs that match; the newest go first.",
        ),
        click.option("--dry-run", is_flag=True, help="Count the jobs that match and change nothing."),
        click.option("--yes", is_flag=True, help="Skip the confirmation."),
    )


def list_filters(params: dict[str, Any]) -> dict[str, Any]:
    """Return the conditions of the options, as the client names them."""
    names = ("queue", "model", "kind", "correlation_id", "fingerprint")
    filters = {name: params[name] for name in names if params[name]}
    if params["tenant"] is not None:
        filters["tenant"] = params["tenant"]
    tags = name_value_pairs(params["tags"], "--tag")
    return {
        **filters,
        **({"tags": tags} if tags else {}),
        **({"states": params["states"]} if params["states"] else {}),
    }


def has_filter(params: dict[str, Any]) -> bool:
    """Return True if the options select jobs.

    Raise UsageError for conditions together with ids of jobs, and for neither.
    """
    selects = params["all_jobs"] or bool(list_filters(params))
    if selects and params.get("job_ids"):
        raise click.UsageError("name the ids of jobs, or conditions such as --queue, not both")
    if not selects and not params.get("job_ids"):
        raise click.UsageError("name the ids of jobs, conditions such as --queue and --state, or --all")
    return selects


def change_matching(client: Any, action: JobAction, params: dict[str, Any]) -> int:
    """Apply an action to all jobs that match, after a confirmation. Return the exit status."""
    wanted = {**list_filters(params), "all_jobs": params["all_jobs"], "limit": params["limit"]}
    json_lines = params["json_lines"]
    if params["dry_run"] or not params["yes"]:
        counted = client.bulk(action.value, dry_run=True, **wanted)
        if params["dry_run"]:
            click.echo(orjson.dumps(counted) if json_lines else _matching(counted))
            return 0
        if not counted["matched"]:
            click.echo(_matching(counted), err=True)
            return 0
        if not click.confirm(f"{_matching(counted)}. {action.value.capitalize()} them?", err=True):
            return 1
    done = client.bulk(action.value, **wanted)
    click.echo(orjson.dumps(done) if json_lines else f"{done['changed']:,} jobs {_DONE[action]}")
    for reason, number in sorted(done["skipped"].items()):
        click.echo(f"{number:,} jobs skipped: {reason}", err=True)
    if done["next_after"]:
        click.echo("more jobs match: repeat the command, or raise --limit", err=True)
    return 0


def _matching(counted: dict[str, Any]) -> str:
    if not counted["matched"]:
        return "no matching jobs"
    more = " or more" if counted["next_after"] else ""
    return f"{counted['matched']:,}{more} jobs match"
