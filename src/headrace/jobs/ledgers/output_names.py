"""The owners of output names: the rows of ``headrace_output``.

A row is locked before its owner's state is read, so that two jobs cannot take one name over.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

from headrace.core.errors import HeadraceError, OutputTakenError
from headrace.jobs.job import IfExists, Job
from headrace.jobs.ledgers.database import Transaction, read_statement
from headrace.jobs.ledgers.rows import dump_spec, read_by_id
from headrace.jobs.paths import distinct_name, output_location, output_name, versioned_name
from headrace.jobs.state import WITH_RESULT

_INSERT: Final = read_statement("insert_outputs")
_LOCKED: Final = read_statement("output_locked")
_TAKE: Final = read_statement("take_output")
_OWNER: Final = read_statement("output_owner")
_SET_SPEC: Final = read_statement("set_spec")
_NAMES_MAX: Final = 4
"""The number of names that are tried for one job."""


@dataclass(frozen=True, slots=True)
class NameOwner:
    """The owner of an output name. `job` is None if it was deleted."""

    key: str
    tenant: str
    job: Job | None


def other_name(job: Job, owner: NameOwner, if_exists: IfExists) -> str | None:
    """Return another name for the job, or None if it takes the owner's name over.

    Raise OutputTakenError if neither is permitted.
    """
    key, tenant = job.spec.key, job.spec.tenant
    if if_exists == "rename":
        return versioned_name(output_name(job.spec), job.id)
    if owner.key != key:
        return distinct_name(output_name(job.spec), key)
    if owner.tenant != tenant:
        raise OutputTakenError(key, "", "another client owns this key below the output; choose another key")
    if owner.job is None or if_exists == "replace":
        return None
    state = owner.job.state
    if state.ended and state not in WITH_RESULT:
        return None
    if if_exists == "version":
        return versioned_name(output_name(job.spec), job.id)
    raise OutputTakenError(
        key,
        owner.job.id,
        f"job {owner.job.id} ({state.value}) owns this key below the output; choose another key, "
        "or request if_exists=replace or if_exists=version",
    )


def claim_names(transaction: Transaction, jobs: Sequence[Job]) -> dict[str, Job | HeadraceError]:
    """Claim the output names of new jobs. Return the jobs with another name, and refusals, by id."""
    located: list[tuple[str, Job]] = []
    changed: dict[str, Job | HeadraceError] = {}
    for job in filter(_has_name, jobs):
        try:
            located.append((output_location(job.spec), job))
        except HeadraceError as error:
            changed[job.id] = error
    first = dict(reversed(located))
    records = [_record(location, job) for location, job in sorted(first.items())]
    inserted = {row[0] for row in transaction.run(_INSERT, records)} if records else set[str]()
    contested = [pair for pair in located if first[pair[0]] is not pair[1] or pair[0] not in inserted]
    # Concurrent transactions lock the names in one order. Jobs of one name keep theirs.
    for _, job in sorted(contested, key=itemgetter(0)):
        try:
            claimed = claim_name(transaction, job, job.spec.if_exists)
        except HeadraceError as error:
            changed[job.id] = error
        else:
            if claimed is not job:
                changed[job.id] = claimed
    return changed


def claim_name(transaction: Transaction, job: Job, if_exists: IfExists) -> Job:
    """Claim the name of a job's output, and return the job, perhaps with another name.

    Raise OutputTakenError if another job owns the name and `if_exists` does not permit another way.
    """
    if not _has_name(job):
        return job
    named = job
    for _ in range(_NAMES_MAX):
        owner = _lock_or_insert(transaction, named)
        if owner is None or (owner.job is not None and owner.job.id == job.id):
            return _with_spec(transaction, job, named)
        name = other_name(named, owner, if_exists)
        if name is None:
            _take(transaction, named)
            return _with_spec(transaction, job, named)
        named = replace(named, spec=replace(named.spec, output_name=name))
    raise OutputTakenError(job.spec.key, "", "other clients own all names for this key; choose another key")


def owns_name(transaction: Transaction, job: Job) -> bool:
    """Return True if no other job owns the name of the job's output."""
    return _owner_id(transaction, job) in (None, job.id)


def read_owner(transaction: Transaction, job: Job) -> Job | None:
    """Return the job that owns the name of this job's output; None if that is deleted."""
    owner_id = _owner_id(transaction, job)
    return read_by_id(transaction, [owner_id]).get(owner_id) if owner_id else None


def _owner_id(transaction: Transaction, job: Job) -> str | None:
    """Return the id of the name's owner, None if that is deleted.

    A job owns its name if nobody else does: jobs of earlier versions have no row.
    """
    rows = transaction.run(_OWNER, location=output_location(job.spec)) if _has_name(job) else ()
    return rows[0][0] if rows else job.id


def _has_name(job: Job) -> bool:
    """Return True if another job could have the name; no other job has the name of an id."""
    return bool(job.spec.output_uri and job.spec.key)


def _record(location: str, job: Job) -> dict[str, str]:
    return {
        "new_location": location,
        "new_key": job.spec.key,
        "new_tenant": job.spec.tenant,
        "new_owner_id": job.id,
    }


def _lock_or_insert(transaction: Transaction, job: Job) -> NameOwner | None:
    """Lock the name's row and return its owner; or claim a name that nobody owns and return None."""
    location = output_location(job.spec)
    if transaction.run(_INSERT, [_record(location, job)]):
        return None
    key, tenant, owner_id = transaction.run(_LOCKED, location=location)[0]
    owner = read_by_id(transaction, [owner_id]).get(owner_id) if owner_id else None
    return NameOwner(key, tenant, owner)


def _take(transaction: Transaction, job: Job) -> None:
    transaction.run(
        _TAKE,
        location=output_location(job.spec),
        owner_key=job.spec.key,
        owner_tenant=job.spec.tenant,
        owner_id=job.id,
    )


def _with_spec(transaction: Transaction, job: Job, named: Job) -> Job:
    if named is not job:
        transaction.run(_SET_SPEC, id=job.id, spec=dump_spec(named.spec))
    return named
