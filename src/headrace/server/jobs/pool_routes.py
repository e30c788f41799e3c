"""The routes of pools of workers, and of the decisions about them."""

from typing import Final

from headrace.jobs.access import Scope
from headrace.jobs.pools import decision_document, pool_document
from headrace.server.http import Exchange
from headrace.server.jobs.api import ERRORS, ApiHandlers, respond_json
from headrace.server.jobs.documents import (
    DecisionPageDocument,
    DecisionsQuery,
    PoolScaleDocument,
    PoolsDocument,
)
from headrace.server.routes import read_query, route

_MONITOR: Final = (Scope.MONITOR,)


class PoolHandlers(ApiHandlers):
    """The handlers of the routes of pools. Their docstrings are the descriptions for clients."""

    @route("GET", "/v1/pools", _MONITOR, PoolsDocument, errors=ERRORS)
    async def list_pools(self, exchange: Exchange) -> None:
        """List the pools of workers, sorted by name, each with its last decision.

        A pool is listed until it had no controller for 30 days.
        """
        pools = await self._run(self._service.pools, exchange.client)
        await respond_json(exchange, {"pools": list(map(pool_document, pools))})

    @route("GET", "/v1/pools/{pool}/scale", _MONITOR, PoolScaleDocument, errors=(*ERRORS, 404))
    async def scale_pool(self, exchange: Exchange) -> None:
        """Return the number of workers that a pool is to have, for autoscalers.

        The number is that of the last decision of the pool's controller. If it is unknown, the response
        is an error, never 0: 404 for an unknown pool, and 503 if no controller decides about the pool.
        """
        pool = exchange.arguments["pool"]
        decision = await self._run(self._service.pool_decision, exchange.client, pool)
        document = {
            "pool": decision.pool,
            "wanted": decision.wanted,
            "active": decision.wanted > 0,
            "reason": decision.reason,
            "at_ms": decision.at_ms,
        }
        await respond_json(exchange, document)

    @route(
        "GET",
        "/v1/pools/{pool}/decisions",
        _MONITOR,
        DecisionPageDocument,
        query=DecisionsQuery,
        errors=ERRORS,
    )
    async def list_decisions(self, exchange: Exchange) -> None:
        """List the decisions about a pool, newest first, one page at a time.

        Decisions are kept for 30 days. An unknown pool has none.
        """
        query = read_query(DecisionsQuery, exchange.query)
        page = await self._run(
            self._service.decisions,
            exchange.client,
            pool=exchange.arguments["pool"],
            after=query.after,
            limit=query.limit,
        )
        document = {
            "decisions": list(map(decision_document, page.decisions)),
            "next_after": page.next_after,
        }
        await respond_json(exchange, document)
