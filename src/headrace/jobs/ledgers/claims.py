"""Claims of jobs: the reads and writes around the decisions of `headrace.jobs.lanes`.

A claim reads the lanes of a queue, locks the first jobs of the lanes that matter, chooses, and updates
the chosen jobs. It never waits for another claim: jobs and limits that another one has locked are skipped.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.jobs.counters import CountedEvent
from headrace.jobs.job import CRASHES_TOGETHER_MAX, Job
from headrace.jobs.lanes import (
    Candidate,
    ClaimLimit,
    ClaimState,
    Lane,
    QueueShares,
    Subject,
    choose,
    claim_state,
    is_shared,
    lanes_to_read,
    parse_lane,
)
from headrace.jobs.ledger import ClaimRequest, SettleAndClaimReply
from headrace.jobs.ledgers.database import Transaction, read_statement
from headrace.jobs.ledgers.rows import clean, job_of, read_jobs
from headrace.jobs.state import TRANSITIONS, JobEvent, JobState, source_states

# `claim_jobs.sql` and `claim_only_lane.sql` make these transitions themselves.
assert source_states(JobEvent.CLAIM) == {JobState.PENDING}
assert TRANSITIONS[JobState.PENDING, JobEvent.CLAIM] is JobState.RUNNING

_LANES: Final = read_statement("claimable_lanes", keeps_plan=True)
_CLAIM_ONLY_LANE: Final = read_statement("claim_only_lane", keeps_plan=True)
_CANDIDATES: Final = read_statement("lane_candidates")
_CLAIM: Final = read_statement("claim_jobs", keeps_plan=True)
_WAKE: Final = read_statement("wake_queue")
_LOCK_LIMITS: Final = read_statement("lock_limits")
_RUNNING: Final = read_statement("running_lanes")
_INSERT_LIMITS: Final = read_statement("insert_limits")
_ALL_REGIONS: Final = "*"
_SLEEPERS_READ_MAX: Final = 1000
"""Sleeping jobs that are read to find the next one of a region."""


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The lanes of a queue that a claim may take from, with the places of their first jobs."""

    heads: Mapping[Lane, tuple[float, str]]
    due_in_ms: int | None
    limits: Sequence[ClaimLimit]


@dataclass(frozen=True, slots=True)
class _Rest:
    """The rest of a queue after a claim: the time until a job is due, and if limits close all its lanes."""

    due_in_ms: int | None
    limited: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a claim from one queue. `stopped`: the next job must run alone.

    `has_limits`: a limit may have closed the lanes that were read, so that other ones are next. `rest`
    is None if it is not known.
    """

    jobs: tuple[Job, ...] = ()
    stopped: bool = False
    has_limits: bool = False
    rest: _Rest | None = None


class Claims:
    """The claims of one ledger, and its memory of fair shares. Thread-safe.

    The memory is lost with the process. It orders tenants with equally many running jobs only.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shares: dict[str, QueueShares] = {}
        self._shared_queues: set[str] = set()
        """Queues that had several lanes, or limits, when they were last read."""

    def claim(self, transaction: Transaction, request: ClaimRequest) -> SettleAndClaimReply:
        """Claim jobs as `ClaimRequest` describes it. Return a reply without settlements."""
        near = clean(request.region) or _ALL_REGIONS
        widest = _ALL_REGIONS if request.other_regions else near
        jobs, rests = self._claim(transaction, request, near)
        if not jobs and widest != near:
            # The region has no jobs: claim the next job of any region.
            jobs, rests = self._claim(transaction, request, widest)
        elif widest != near:
            rests = {}
        transaction.notice.changed = transaction.notice.changed or bool(jobs)
        for job in jobs:
            wait_ms = (job.started_at_ms or job.due_at_ms) - job.due_at_ms
            transaction.counters.add(CountedEvent.STARTED, job.spec, duration_ms=wait_ms)
        if len(jobs) >= request.jobs_max:
            return SettleAndClaimReply((), tuple(jobs))
        known = [
            rests.get(queue) or self._read_rest(transaction, request, queue, widest)
            for queue in dict.fromkeys(request.queues)
        ]
        dues_ms = [max(0, rest.due_in_ms) for rest in known if rest.due_in_ms is not None]
        limited = any(rest.limited for rest in known)
        return SettleAndClaimReply((), tuple(jobs), min(dues_ms, default=None), limited)

    def _claim(
        self, transaction: Transaction, request: ClaimRequest, region: str
    ) -> tuple[list[Job], dict[str, _Rest]]:
        """Claim from the queues in order. Return the jobs, and what is left in queues as far as known."""
        jobs: list[Job] = []
        rests: dict[str, _Rest] = {}
        for queue in dict.fromkeys(request.queues):
            while len(jobs) < request.jobs_max:
                part = self._claim_from(transaction, request, queue, region, taken=len(jobs))
                jobs += part.jobs
                if part.rest is not None:
                    rests[queue] = part.rest
                if part.stopped:
                    # No other job may overtake the one that must run alone.
                    return jobs, rests
                if not (part.jobs and part.has_limits):
                    break
        return jobs, rests

    def _claim_from(
        self, transaction: Transaction, request: ClaimRequest, queue: str, region: str, *, taken: int
    ) -> _Part:
        most = request.jobs_max - taken
        if queue not in self._shared_queues and (jobs := _claim_only_lane(transaction, request, queue, most)):
            return _Part(jobs)
        lanes = self._read_lanes(transaction, request, queue, region)
        if lanes.due_in_ms is not None and lanes.due_in_ms <= 0 and transaction.run(_WAKE, queue=queue):
            lanes = self._read_lanes(transaction, request, queue, region)
        state, is_held = _read_state(transaction, lanes)
        rest, several = _rest_of(lanes, state, is_held=is_held), is_shared(lanes.heads, state)
        with self._lock:
            wanted = lanes_to_read(lanes.heads, queue, state, self._shares_of(queue), most)
        candidates = [
            candidate
            for lane in wanted
            for candidate in _lock_candidates(transaction, queue, lane, state.capacity_of(lane, most))
        ]
        with self._lock:
            shares = self._shares_of(queue)
            choice = choose(
                candidates, most, queue=queue, taken=taken, is_shared=several, state=state, shares=shares
            )
        jobs = _update(transaction, request, choice.job_ids)
        return _Part(jobs, choice.stopped, bool(state.capacity), None if jobs else rest)

    def _read_rest(self, transaction: Transaction, request: ClaimRequest, queue: str, region: str) -> _Rest:
        lanes = self._read_lanes(transaction, request, queue, region)
        state, is_held = _read_state(transaction, lanes)
        return _rest_of(lanes, state, is_held=is_held)

    def _shares_of(self, queue: str) -> QueueShares:
        return self._shares.setdefault(queue, QueueShares())

    def _read_lanes(self, transaction: Transaction, request: ClaimRequest, queue: str, region: str) -> _Lanes:
        rows = transaction.run(
            _LANES,
            queue=queue,
            region=region,
            without_models=_listed(request.without_models),
            sleeper_limit=1 if region == _ALL_REGIONS else _SLEEPERS_READ_MAX,
        )
        heads: dict[Lane, tuple[float, str]] = {}
        limits: list[ClaimLimit] = []
        due_in_ms: int | None = None
        for kind, name, number, weight, first_id in rows:
            if kind == "asleep":
                due_in_ms = number
            elif kind != "lane":
                limits.append(ClaimLimit(kind, name, number, float(weight)))
            else:
                heads[parse_lane(name)] = (number, first_id)
        with self._lock:
            if limits or len(heads) > 1:
                self._shared_queues.add(queue)
            else:
                self._shared_queues.discard(queue)
        matching = {lane: place for lane, place in heads.items() if _matches(lane, request, region)}
        return _Lanes(matching, due_in_ms, limits)


def write_limits(transaction: Transaction, limits: Sequence[ClaimLimit]) -> None:
    """Add limits, or replace those of the same kinds and names."""
    records = [
        {
            "limit_kind": limit.kind,
            "limit_name": clean(limit.name),
            "new_running_max": limit.running_max,
            "new_weight": limit.weight,
        }
        for limit in limits
    ]
    transaction.run(_INSERT_LIMITS, records)


def _rest_of(lanes: _Lanes, state: ClaimState, *, is_held: bool) -> _Rest:
    """Return what a claim leaves. Lanes that are open, or held by other claims, can be claimed soon."""
    is_open = is_held or any(state.capacity_of(lane, 1) for lane in lanes.heads)
    return _Rest(0 if is_open else lanes.due_in_ms, limited=bool(lanes.heads) and not is_open)


def _claim_only_lane(
    transaction: Transaction, request: ClaimRequest, queue: str, most: int
) -> tuple[Job, ...]:
    """Claim the first jobs of a queue with one lane and without limits, in one step.

    Return nothing for other queues, and for a claim that leaves some jobs to others.
    """
    if request.region or request.without_models:
        return ()
    rows = transaction.run(
        _CLAIM_ONLY_LANE,
        queue=queue,
        row_limit=most,
        crashes_together_max=CRASHES_TOGETHER_MAX,
        **_claim_values(request),
    )
    return tuple(map(job_of, sorted(rows, key=lambda row: (row[-1], row[0]))))


def _claim_values(request: ClaimRequest) -> dict[str, Any]:
    return {
        "worker": clean(request.worker),
        "region": clean(request.region),
        "lease_ms": request.lease_ms,
    }


def _matches(lane: Lane, request: ClaimRequest, region: str) -> bool:
    is_near = region == _ALL_REGIONS or lane.region in (region, "")
    return is_near and lane.model not in request.without_models


def _listed(models: frozenset[str]) -> str:
    """Return the names between commas, which no name has; an empty string without names."""
    return f",{clean(','.join(sorted(models)))}," if models else ""


def _read_state(transaction: Transaction, lanes: _Lanes) -> tuple[ClaimState, bool]:
    """Return the state of limits and shares, and True if another claim holds one of the limits.

    Without a limit of these lanes and with one tenant nothing is read.
    """
    subjects: set[Subject] = {subject for lane in lanes.heads for subject in lane.subjects}
    limits = [
        limit
        for limit in lanes.limits
        if limit.kind == "tenant" or ((limit.kind, limit.name) in subjects and limit.running_max is not None)
    ]
    bounds = sorted((limit.kind, limit.name) for limit in limits if limit.kind != "tenant")
    if not bounds and len({lane.tenant for lane in lanes.heads}) < 2:
        return claim_state(limits, {}), False
    locked: set[Subject] = set()
    if bounds:
        records = [{"limit_kind": kind, "limit_name": name} for kind, name in bounds]
        locked = {(kind, name) for kind, name in transaction.run(_LOCK_LIMITS, records)}
    running = {(queue, lane): jobs for queue, lane, jobs in transaction.run(_RUNNING)}
    state = claim_state(limits, running)
    held = [subject for subject in bounds if subject not in locked]
    state.capacity.update(dict.fromkeys(held, 0))
    return state, bool(held)


def _lock_candidates(transaction: Transaction, queue: str, lane: Lane, most: int) -> list[Candidate]:
    rows = transaction.run(
        _CANDIDATES,
        queue=queue,
        lane=lane.text,
        row_limit=most,
        crashes_together_max=CRASHES_TOGETHER_MAX,
    )
    return [Candidate(job_id, lane, rank_ms, bool(alone)) for job_id, rank_ms, alone in rows]


def _update(transaction: Transaction, request: ClaimRequest, job_ids: Sequence[str]) -> tuple[Job, ...]:
    if not job_ids:
        return ()
    records = [{"claimed_id": job_id} for job_id in job_ids]
    jobs = {job.id: job for job in read_jobs(transaction, _CLAIM, records=records, **_claim_values(request))}
    return tuple(jobs[job_id] for job_id in job_ids if job_id in jobs)
