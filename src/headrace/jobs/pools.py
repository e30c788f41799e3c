"""Pools: groups of equal workers whose number a controller decides, and the log of these decisions.

`headrace.scaling` decides. The ledger keeps one lease for each pool, so that one controller at a time
scales it, and the decisions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from headrace.core.errors import ResourceNotFoundError, UncontrolledPoolError

DECISIONS_KEPT_DAYS: Final = 30
"""Days for which a ledger keeps decisions, and pools without a controller."""
DECISION_PAGE_MAX: Final = 500
WORKERS_WANTED: Final = "headrace_pool_workers_wanted"
"""The name of the number of workers that a pool is to have, in metrics and for other autoscalers."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """A decision about the number of workers of a pool, with its reason in words.

    `workers` is the number that the pool had, and `wanted` the one that it is to have. Both include
    workers that drain only if the controller cannot choose the workers that end. `observed` has the
    figures behind the decision, as JSON. The ledger sets `number` and `at_ms`; greater numbers are
    later ones.
    """

    pool: str
    controller: str
    workers: int
    wanted: int
    reason: str
    observed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    number: int = 0
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class DecisionPage:
    """A page of decisions, newest first. `next_after` starts the next page; "" on the last one."""

    decisions: tuple[ScalingDecision, ...]
    next_after: str = ""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool as the ledger has it at `read_at_ms`."""

    name: str
    controller: str
    """The controller that held the lease last."""
    lease_until_ms: int
    read_at_ms: int
    decision: ScalingDecision | None = None
    """The last decision that is kept."""

    @property
    def controlled(self) -> bool:
        """True while a controller holds the lease."""
        return self.lease_until_ms > self.read_at_ms

    def published_decision(self) -> ScalingDecision:
        """Return the decision that other autoscalers follow: the last one of the pool's controller.

        Raises:
            UncontrolledPoolError: No controller holds the lease of the pool, or it has not decided yet.
        """
        if not self.controlled:
            raise UncontrolledPoolError(self.name, "no controller: start one, such as `headrace scale`")
        if self.decision is None:
            why = "no decision yet: if this lasts, see the log of its controller"
            raise UncontrolledPoolError(self.name, why)
        return self.decision


def published_decision(pools: Iterable[Pool], name: str) -> ScalingDecision:
    """Return the published decision about one of the pools.

    Raises:
        ResourceNotFoundError: None has this name.
        UncontrolledPoolError: It has no published decision.
    """
    pool = next((pool for pool in pools if pool.name == name), None)
    if pool is None:
        raise ResourceNotFoundError("pool", name)
    return pool.published_decision()


def decision_document(decision: ScalingDecision) -> dict[str, Any]:
    """Return a decision as JSON."""
    return {
        "number": decision.number,
        "at_ms": decision.at_ms,
        "pool": decision.pool,
        "controller": decision.controller,
        "workers": decision.workers,
        "wanted": decision.wanted,
        "reason": decision.reason,
        "observed": dict(decision.observed),
    }


def pool_document(pool: Pool) -> dict[str, Any]:
    """Return a pool as JSON, with its last decision or None."""
    return {
        "pool": pool.name,
        "controller": pool.controller,
        "controlled": pool.controlled,
        "lease_until_ms": pool.lease_until_ms,
        "decision": None if pool.decision is None else decision_document(pool.decision),
    }
