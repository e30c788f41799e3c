"""The job API: all its routes, those of health and of event notifications, and an application."""

import logging
from dataclasses import replace
from typing import Any, Final, cast

import orjson

from headrace.jobs.access import Access, Scope
from headrace.jobs.service import JobService
from headrace.jobs.trigger import EventSubmitter, Triggers
from headrace.protocols.object_events import NOTICE_BYTES_MAX, object_events
from headrace.server.application import WebApp
from headrace.server.guard import Guard
from headrace.server.http import Exchange
from headrace.server.jobs.api import ERRORS, Api, ApiSettings, BoundedThreadPool, respond_json
from headrace.server.jobs.documents import EventOutcomesDocument, HealthDocument
from headrace.server.jobs.job_routes import JobHandlers
from headrace.server.jobs.payload_routes import PayloadHandlers
from headrace.server.jobs.queue_routes import QueueHandlers
from headrace.server.jobs.sagemaker import SageMakerSettings, sagemaker_routes
from headrace.server.openapi import documentation_routes
from headrace.server.routes import Route, route, routes_of

_CONFIRMATION: Final = "SubscriptionConfirmation"

_log = logging.getLogger("headrace.jobs.events")


def job_routes(
    service: JobService,
    *,
    settings: ApiSettings | None = None,
    thread_pool: BoundedThreadPool | None = None,
    sagemaker: SageMakerSettings | None = None,
    event_submitter: EventSubmitter | None = None,
) -> list[Route]:
    """Return the routes of the job API for one event loop.

    The caller starts `service` before it serves the routes and stops it afterwards. The caller closes
    `thread_pool` if it passed one. With `sagemaker` there is a route for SageMaker clients. With
    `event_submitter`, object events submit jobs.
    """
    api = Api(service, settings, thread_pool)
    submitter = event_submitter or EventSubmitter(Triggers(()), service.submit_internal)
    groups: list[object] = [
        JobHandlers(api),
        PayloadHandlers(api),
        QueueHandlers(api),
        OtherHandlers(api, submitter),
    ]
    routes = [found for handlers in groups for found in routes_of(handlers)]
    if sagemaker is not None:
        routes += sagemaker_routes(api, sagemaker)
    return [replace(found, has_request_id=True) for found in routes]


def jobs_app(
    service: JobService,
    access: Access,
    *,
    version: str,
    settings: ApiSettings | None = None,
    thread_pool: BoundedThreadPool | None = None,
    sagemaker: SageMakerSettings | None = None,
    event_submitter: EventSubmitter | None = None,
) -> WebApp:
    """Return an application with the job API alone; see `job_routes`."""
    settings, guard = settings or ApiSettings(), Guard(access)
    routes = job_routes(
        service,
        settings=settings,
        thread_pool=thread_pool,
        sagemaker=sagemaker,
        event_submitter=event_submitter,
    )
    documentation = documentation_routes(routes, guard, version=version)
    return WebApp([*routes, *documentation], guard, body_s_max=settings.body_s_max)


class OtherHandlers:
    """The handlers of health and of event notifications; their docstrings describe them for clients."""

    def __init__(self, api: Api, submitter: EventSubmitter) -> None:
        self._service = api.service
        self._run = api.thread_pool.run
        self._submitter = submitter

    @route("GET", "/v1/health/live", (), HealthDocument)
    async def jobs_live(self, exchange: Exchange) -> None:
        """Report that the process responds. No key is needed."""
        await respond_json(exchange, {"status": "ok"})

    @route("GET", "/v1/health/ready", (), HealthDocument, errors=ERRORS)
    async def jobs_ready(self, exchange: Exchange) -> None:
        """Report that jobs can be submitted: the database of the ledger responds. No key is needed."""
        await self._run(self._service.check_ready)
        await respond_json(exchange, {"status": "ok"})

    @route("POST", "/v1/events/s3", (Scope.EVENTS,), EventOutcomesDocument, errors=(*ERRORS, 408, 413))
    async def receive_s3_events(self, exchange: Exchange) -> None:
        """Accept an event notification, and submit the jobs of matching triggers.

        The formats of AWS, MinIO and Ceph are accepted, bare or wrapped by SNS, SQS or EventBridge.
        Repeated or reordered notifications about created objects make no job twice.
        """
        body = await exchange.body(NOTICE_BYTES_MAX)
        if _wants_confirmation(body):
            # The address in the notification is not called: any sender could have chosen it.
            _log.warning(
                "SNS requests the confirmation of a subscription: confirm it in the console or API of SNS"
            )
            await respond_json(exchange, {"outcomes": []})
            return
        outcomes = await self._run(self._submitter.submit, object_events(body))
        documents = [
            {"uri": o.uri, "job_id": o.job_id, "created": o.created, "reason": o.reason} for o in outcomes
        ]
        await respond_json(exchange, {"outcomes": documents})


def _wants_confirmation(body: bytes) -> bool:
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and cast("dict[str, Any]", document).get("Type") == _CONFIRMATION
