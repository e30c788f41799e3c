"""The choice of the jobs that are claimed next: lanes, limits of running jobs, fair shares. Pure.

The waiting jobs of a queue with the same tenant, API key, endpoint, model and region are a lane. Whether
a limit closes a job to a claim depends on its lane alone, so that a claim never looks at the jobs behind
a limit, however many there are.

Within a tenant the order is that of `rank_ms`: the due time plus a delay for each step of priority
(`ageing_ms`), so that a job of a low priority is overtaken for a limited time only.

Between tenants the next job is that of the tenant with the fewest running jobs for its weight. If several
tenants have equally many, start-time fair queueing decides (Goyal, Vin and Cheng, 1996): each job begins
at a virtual time and occupies 1/weight of it, and the tenant whose next job begins first is served.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from headrace.jobs.job import NewJob

LimitKind = Literal["tenant", "key", "endpoint", "model"]
AGEING_S_DEFAULT: Final = 3600.0
AGEING_MS_MAX: Final = 10**13
"""The delay of each step of priority without ageing: three centuries."""
LANES_MAX: Final = 64
"""Lanes that one claim reads of a queue."""
_PARTS: Final = 5


@dataclass(frozen=True, slots=True)
class ClaimLimit:
    """The limit of the running jobs of an API key, an endpoint or a model, or the share of a tenant.

    A model is meant with all its versions. `running_max` is None for no limit; `weight` counts for
    tenants only.
    """

    kind: LimitKind
    name: str
    running_max: int | None = None
    weight: float = 1.0


Subject = tuple[str, str]
"""The kind and the name of a limit."""


@lru_cache(1024)
def _lane_text(*parts: str) -> str:
    return "|".join(part.replace("%", "%25").replace("|", "%7C") for part in parts)


@dataclass(frozen=True, slots=True)
class Lane:
    """The properties that all jobs of a lane have in common, besides their queue."""

    tenant: str
    api_key: str
    endpoint: str
    model: str
    region: str

    @property
    def text(self) -> str:
        """The lane as the ledger stores it."""
        return _lane_text(self.tenant, self.api_key, self.endpoint, self.model, self.region)

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """The limits that can apply to the jobs of this lane."""
        model = self.model.partition("@")[0]
        return ("key", self.api_key), ("endpoint", self.endpoint), ("model", model)


def lane_text(job: NewJob) -> str:
    """Return the lane of a job as the ledger stores it."""
    return _lane_text(job.tenant, job.submitted_by, job.endpoint, job.model, job.region)


@lru_cache(1024)
def parse_lane(text: str) -> Lane:
    """Return the lane of a `lane_text`."""
    parts = [part.replace("%7C", "|").replace("%25", "%") for part in text.split("|")]
    return Lane(*(parts + [""] * _PARTS)[:_PARTS])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that could be claimed. A job that is `alone` is the only one of its claim."""

    job_id: str
    lane: Lane
    rank_ms: float
    alone: bool = False

    @property
    def place(self) -> tuple[float, str]:
        """The place of the job among those of its tenant."""
        return self.rank_ms, self.job_id


@dataclass(slots=True)
class QueueShares:
    """The turns that the tenants of a queue had lately, while others waited."""

    virtual: float = 0.0
    """The virtual time at which the last served job began."""
    ends: dict[str, float] = field(default_factory=dict[str, float])
    """The virtual times at which the last jobs of tenants end, if later than `virtual`."""

    def start_of(self, tenant: str) -> float:
        """Return the virtual time at which the next job of a tenant begins."""
        return max(self.virtual, self.ends.get(tenant, 0.0))

    def serve(self, tenant: str, weight: float) -> None:
        """Record that a job of a tenant was served while other tenants waited."""
        self.virtual = self.start_of(tenant)
        self.ends[tenant] = self.virtual + 1.0 / weight
        self.ends = {name: end for name, end in self.ends.items() if end > self.virtual}


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen jobs, in the order of their places. `stopped`: a job that must run alone comes next."""

    job_ids: tuple[str, ...]
    stopped: bool = False


@dataclass(slots=True)
class ClaimState:
    """The state of limits and shares during one claim: it changes with every chosen job."""

    weights: Mapping[str, float]
    """The weights of tenants; 1 for others."""
    capacity: dict[Subject, int]
    """How many more jobs may run, by limit; the keys are all limits."""
    running: Counter[tuple[str, str]]
    """The running jobs by queue and tenant."""

    def capacity_of(self, lane: Lane, most: int) -> int:
        """Return how many more jobs of a lane may run, `most` at most."""
        return max(0, min((self.capacity.get(subject, most) for subject in lane.subjects), default=most))

    def take(self, queue: str, lane: Lane) -> None:
        """Count another running job."""
        for subject in lane.subjects:
            if subject in self.capacity:
                self.capacity[subject] -= 1
        self.running[queue, lane.tenant] += 1


def claim_state(limits: Iterable[ClaimLimit], running: Mapping[tuple[str, str], int]) -> ClaimState:
    """Return the state before a claim. `running` counts running jobs by queue and `lane_text`."""
    weights: dict[str, float] = {}
    capacity: dict[Subject, int] = {}
    for limit in limits:
        if limit.kind == "tenant":
            weights[limit.name] = limit.weight
        elif limit.running_max is not None:
            capacity[limit.kind, limit.name] = limit.running_max
    state = ClaimState(weights, capacity, Counter())
    for (queue, text), jobs in running.items():
        lane = parse_lane(text)
        state.running[queue, lane.tenant] += jobs
        for subject in lane.subjects:
            if subject in capacity:
                capacity[subject] -= jobs
    return state


def is_shared(lanes: Iterable[Lane], state: ClaimState) -> bool:
    """Return True if several tenants have open lanes."""
    return len({lane.tenant for lane in lanes if state.capacity_of(lane, 1)}) > 1


def lanes_to_read(
    heads: Mapping[Lane, tuple[float, str]], queue: str, state: ClaimState, shares: QueueShares, most: int
) -> list[Lane]:
    """Return the open lanes that have the next `most` jobs: `most` lanes of each of `most` tenants.

    `heads` are the places of the lanes' first jobs. The first jobs of a tenant are in the lanes with the
    first heads. At most `LANES_MAX` lanes are returned, those of all tenants in turn.
    """
    by_tenant: dict[str, list[Lane]] = {}
    for lane in sorted(heads, key=lambda lane: heads[lane]):
        if state.capacity_of(lane, 1):
            by_tenant.setdefault(lane.tenant, []).append(lane)
    tenants = sorted(
        by_tenant,
        key=lambda tenant: (*_turn(tenant, queue, state, shares), heads[by_tenant[tenant][0]]),
    )[:most]
    rounds = range(min(most, max(map(len, by_tenant.values()), default=0)))
    lanes = [by_tenant[tenant][n] for n in rounds for tenant in tenants if n < len(by_tenant[tenant])]
    return lanes[:LANES_MAX]


def choose(
    candidates: Collection[Candidate],
    most: int,
    *,
    queue: str,
    taken: int,
    is_shared: bool,
    state: ClaimState,
    shares: QueueShares,
) -> Choice:
    """Return at most `most` of the candidates of a queue, and count them in `state` and `shares`.

    `taken` is the number of jobs that the same claim has taken before. `is_shared`: several tenants wait
    in the queue, also with jobs that are no candidates. A job that must run alone is chosen only as the
    first job of a claim, and no job behind it is.
    """
    waiting: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda each: each.place, reverse=True):
        waiting.setdefault(candidate.lane.tenant, []).append(candidate)
    chosen: list[str] = []
    while len(chosen) < most:
        _drop_closed(waiting, state)
        if not waiting:
            break
        tenant = min(waiting, key=lambda name: (*_turn(name, queue, state, shares), waiting[name][-1].place))
        candidate = waiting[tenant][-1]
        if candidate.alone and (chosen or taken):
            return Choice(tuple(chosen), stopped=True)
        waiting[tenant].pop()
        chosen.append(candidate.job_id)
        state.take(queue, candidate.lane)
        if is_shared:
            shares.serve(tenant, state.weights.get(tenant, 1.0))
        if candidate.alone:
            return Choice(tuple(chosen), stopped=True)
    return Choice(tuple(chosen))


def _turn(tenant: str, queue: str, state: ClaimState, shares: QueueShares) -> tuple[float, float]:
    """Return the order of a tenant: the lowest is served next."""
    weight = state.weights.get(tenant, 1.0)
    return state.running[queue, tenant] / weight, shares.start_of(tenant)


def _drop_closed(waiting: dict[str, list[Candidate]], state: ClaimState) -> None:
    """Remove the first candidates whose lanes are closed, and tenants without candidates."""
    for tenant, candidates in list(waiting.items()):
        while candidates and not state.capacity_of(candidates[-1].lane, 1):
            candidates.pop()
        if not candidates:
            del waiting[tenant]
