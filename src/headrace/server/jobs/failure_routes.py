"""The routes of failures: groups of failed jobs, deliveries of notifications, and failing receivers."""

from typing import Any, Final

from headrace.jobs.access import CHANGE_SCOPES, Scope
from headrace.jobs.deliveries import delivery_document, receiver_document
from headrace.jobs.service import failure_group_document
from headrace.server.http import Exchange
from headrace.server.jobs.api import ERRORS, Api, ApiHandlers, job_id_of, respond_json
from headrace.server.jobs.documents import (
    DeliveriesDocument,
    DeliveryDocument,
    FailureGroupsDocument,
    LimitQuery,
    ReceiverDocument,
    ReceiversDocument,
)
from headrace.server.routes import read_query, route

_READ: Final = (Scope.READ,)
_OPERATE: Final = (Scope.OPERATE,)


class FailureHandlers(ApiHandlers):
    """The handlers of the routes of failures. Their docstrings are the descriptions for clients."""

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self._deliveries = api.service.deliveries

    @route("GET", "/v1/failures", _READ, FailureGroupsDocument, query=LimitQuery, errors=ERRORS)
    async def list_failures(self, exchange: Exchange) -> None:
        """List the failed jobs in groups of equal failures, the largest group first.

        The last 10,000 failed jobs are grouped.
        """
        limit = read_query(LimitQuery, exchange.query).limit
        groups = await self._run(self._service.failure_groups, exchange.client, limit=limit)
        await respond_json(exchange, {"failures": list(map(failure_group_document, groups))})

    @route("GET", "/v1/jobs/{job_id}/deliveries", _READ, DeliveriesDocument, errors=(*ERRORS, 404))
    async def job_deliveries(self, exchange: Exchange) -> None:
        """List the deliveries of a job's notifications, oldest first."""
        records = await self._run(self._deliveries.of_job, exchange.client, job_id_of(exchange))
        await respond_json(exchange, {"deliveries": list(map(delivery_document, records))})

    @route("GET", "/v1/deliveries", _OPERATE, DeliveriesDocument, query=LimitQuery, errors=ERRORS)
    async def dead_deliveries(self, exchange: Exchange) -> None:
        """List the deliveries of all jobs that were given up, the latest first."""
        limit = read_query(LimitQuery, exchange.query).limit
        records = await self._run(self._deliveries.dead, exchange.client, limit=limit)
        await respond_json(exchange, {"deliveries": list(map(delivery_document, records))})

    @route(
        "POST",
        "/v1/deliveries/{delivery_id}/redeliver",
        CHANGE_SCOPES,
        DeliveryDocument,
        errors=(*ERRORS, 404),
    )
    async def redeliver(self, exchange: Exchange) -> None:
        """Deliver a notification again, at once and with all its attempts. Its event id stays the same."""
        delivery_id = exchange.arguments["delivery_id"]
        record = await self._run(self._deliveries.redeliver, exchange.client, delivery_id)
        await respond_json(exchange, delivery_document(record))

    @route("GET", "/v1/receivers", _OPERATE, ReceiversDocument, query=LimitQuery, errors=ERRORS)
    async def list_receivers(self, exchange: Exchange) -> None:
        """List the receivers that are disabled, or whose last delivery failed."""
        limit = read_query(LimitQuery, exchange.query).limit
        records = await self._run(self._deliveries.failing_receivers, exchange.client, limit=limit)
        documents: list[Any] = list(map(receiver_document, records))
        await respond_json(exchange, {"receivers": documents})

    @route("POST", "/v1/receivers/{receiver}/enable", _OPERATE, ReceiverDocument, errors=(*ERRORS, 404))
    async def enable_receiver(self, exchange: Exchange) -> None:
        """Resume the deliveries to a receiver that was disabled, or rests."""
        receiver_id = exchange.arguments["receiver"]
        record = await self._run(self._deliveries.enable_receiver, exchange.client, receiver_id)
        await respond_json(exchange, receiver_document(record))
