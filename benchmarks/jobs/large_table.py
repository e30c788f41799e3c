"""Section large: the cost of claims and lists with a million ended jobs and many pending ones."""

import argparse
import sqlite3
from statistics import median

from inputs import console, run_script
from job_storage import LEDGERS, SQLITE, JobStorage, open_storage
from targets import Target, spread

RATIO_MAX = 3
LIST_MS_MAX = 50

_COLUMNS = (
    "id, state, queue, model, kind, tenant, priority, attempts_max, body_digest, correlation_id, "
    "spec, attempt, lease, worker, "
    "created_at_ms, due_at_ms, asleep, started_at_ms, ended_at_ms, result, lane, rank_ms"
)
_SPEC = '{"input_uri":"s3://bucket/inputs/payload.json","content_type":"application/json"}'
_RESULT = '{"uri":"s3://bucket/attempts/result.out","size_bytes":120,"content_type":"application/json"}'
_FIRST_MS = 1_700_000_000_000
_SQLITE_ID = "printf('{tag}%07x-0000-7000-8000-%012x', n / 65536, n)"
_POSTGRES_ID = "'{tag}' || lpad(to_hex(n / 65536), 7, '0') || '-0000-7000-8000-' || lpad(to_hex(n), 12, '0')"


def rows(names: str, ended: bool) -> str:
    """Return the INSERT of ended or pending jobs. `names` formats their ids; `n` runs through them."""
    job_id = names.format(tag="0" if ended else "1")
    # The oldest 50 ended jobs are the only ones with their queue, model, kind and tenant.
    queue, model, kind, tenant = "'default'", "'bench'", "'infer'", "''"
    if ended:
        queue, model = (
            "CASE WHEN n <= 50 THEN 'rare' ELSE 'default' END",
            "CASE WHEN n <= 50 THEN 'rare' ELSE 'bench' END",
        )
        kind = "CASE WHEN n <= 50 THEN 'stream' ELSE 'infer' END"
        tenant = "CASE WHEN n <= 50 THEN 'rare' WHEN n % 2 = 0 THEN 'a' ELSE '' END"
    correlated = "CASE WHEN n % 100000 = 7 THEN 'c' ELSE '' END"
    common = f"{queue}, {model}, {kind}, {tenant}, 5, 3, '', {correlated}, '{_SPEC}'"
    at = f"{_FIRST_MS} + n"
    lane = f"'|||bench|', {at} + 5 * 3600000"
    if ended:
        rest = f"1, 1, 'worker', {at}, {at}, FALSE, {at} + 20, {at} + 30, '{_RESULT}', {lane}"
        return (
            f"INSERT INTO headrace_job ({_COLUMNS}) SELECT {job_id}, "
            f"CASE WHEN n % 100 = 0 THEN 'failed' ELSE 'completed' END, {common}, "
            f"{rest} FROM numbers"
        )
    rest = f"0, 0, '', {at}, {at}, FALSE, NULL, NULL, NULL, {lane}"
    return f"INSERT INTO headrace_job ({_COLUMNS}) SELECT {job_id}, 'pending', {common}, {rest} FROM numbers"


_TAGS = (
    "INSERT INTO headrace_tag (job_id, name, value, created_at_ms) SELECT id, 'day', "
    f"CASE WHEN created_at_ms <= {_FIRST_MS + 50} THEN 'rare' ELSE 'all' END, created_at_ms FROM headrace_job"
)


def fill(storage: JobStorage, ended: int, pending: int) -> None:
    """Insert jobs into a ledger's tables by SQL."""
    with storage.ledger():
        pass  # creates the tables
    if storage.kind == SQLITE:
        with sqlite3.connect(storage.ledger_url.removeprefix("sqlite:///")) as file:
            for count, over in ((ended, True), (pending, False)):
                file.execute(_recursive(count, rows(_SQLITE_ID, over)))
            file.execute(_TAGS)
            file.commit()
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return
    import psycopg

    with psycopg.connect(storage.ledger_url.replace("+psycopg", ""), autocommit=True) as connection:
        for count, over in ((ended, True), (pending, False)):
            numbers = f"FROM generate_series(1, {count}::bigint) AS numbers(n)"
            connection.execute(rows(_POSTGRES_ID, over).replace("FROM numbers", numbers))
        connection.execute(_TAGS)
        # The server's own maintenance does this sooner or later; the measurement must not wait for
        # it.
        connection.execute("VACUUM (ANALYZE) headrace_job, headrace_tag")
        connection.execute("CHECKPOINT")


def _recursive(count: int, insert: str) -> str:
    numbers = f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})"
    return insert.replace(" SELECT ", f" {numbers} SELECT ", 1)


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Claims of one job, and lists by every filter, with a million ended and 100,000 pending jobs"""
    targets, figures = [], {}
    with open_storage() as new:
        for kind in LEDGERS:
            empty, large = new(kind), new(kind)
            console.print(
                f"[dim]filling {kind}: {arguments.ended:,} ended jobs, {arguments.pending:,} pending ones[/]"
            )
            fill(large, arguments.ended, arguments.pending)
            found: dict[str, list[dict]] = {"empty": [], "large": []}
            for _ in range(arguments.pairs):
                for name, storage in (("empty", empty), ("large", large)):
                    found[name].append(
                        run_script("jobs/claim_speed.py", storage.ledger_url, "--claims", arguments.claims)
                    )
            lists = run_script("jobs/filter_speed.py", large.ledger_url)
            targets += [*targets_of(kind, found), *list_targets(kind, lists)]
            figures[kind] = {**found, "lists": lists}
    return targets, figures


def targets_of(kind: str, found: dict[str, list[dict]]) -> list[Target]:
    targets = []
    for name, bound in (("p99_ms", RATIO_MAX), ("p50_ms", None)):
        empty, large = ([one[name] for one in found[which]] for which in ("empty", "large"))
        ratios = [a / b for a, b in zip(large, empty, strict=True)]
        measured = f"{median(large):.2f} against {median(empty):.2f} ms"
        what = f"{kind}: a claim's {name.removesuffix('_ms')}, large table against empty"
        targets.append(Target("large", what, measured, median(ratios), bound, False, spread(ratios)))
    empty, large = ([one["peak_rss_mb"] for one in found[which]] for which in ("empty", "large"))
    measured = f"{median(large):.0f} against {median(empty):.0f} MB"
    more = [a - b for a, b in zip(large, empty, strict=True)]
    what = f"{kind}: MB more of the claiming process"
    targets.append(Target("large", what, measured, median(more), None, False, spread(more)))
    return targets


def list_targets(kind: str, lists: dict) -> list[Target]:
    """Print the time of a page of each filter. Return the targets of single filters and of pairs."""
    targets = []
    for name in ("single", "pairs"):
        slowest = max(lists[name], key=lambda one: one["ms"])
        what = f"{kind}: ms of the slowest page, {name} of {len(lists[name])} filters ({slowest['filter']})"
        measured = f"{slowest['ms']:.1f} ms"
        targets.append(Target("large", what, measured, slowest["ms"], LIST_MS_MAX, False, ""))
    for one in lists["single"]:
        console.print(f"[dim]{kind}: {one['ms']:7.1f} ms, {one['jobs']:3d} jobs: {one['filter']}[/]")
    return targets
