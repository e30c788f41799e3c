"""The route that receives event notifications of object stores."""

import logging
from typing import Any, Final, cast

import orjson
from fastapi import APIRouter, Request, Response

from headrace.jobs.access import Scope
from headrace.jobs.trigger import EventSubmitter
from headrace.protocols.object_events import NOTICE_BYTES_MAX, object_events
from headrace.server.jobs.api import Api, error_responses, json_response
from headrace.server.jobs.models import EventOutcomesModel

_CONFIRMATION: Final = "SubscriptionConfirmation"

_log = logging.getLogger("headrace.jobs.events")


def event_notice_routes(api: Api, event_submitter: EventSubmitter) -> APIRouter:
    """Return the route for one API."""
    router = APIRouter(prefix="/v1/events", tags=["events"])

    @router.post(
        "/s3",
        summary="Receive an event notification",
        response_model=EventOutcomesModel,
        responses=error_responses(400, 413, 429),
    )
    async def s3(request: Request) -> Response:
        """Accept an event notification, and submit the jobs of matching triggers.

        The formats of AWS, MinIO and Ceph are accepted, bare or wrapped by SNS, SQS or EventBridge.
        Repeated or reordered notifications about created objects make no job twice.
        """
        api.authorize(request, Scope.EVENTS)
        body = await api.body(request, NOTICE_BYTES_MAX)
        if _wants_confirmation(body):
            # The address in the notification is not called: any sender could have chosen it.
            _log.warning(
                "SNS requests the confirmation of a subscription: confirm it in the console or API of SNS"
            )
            return json_response({"outcomes": []})
        outcomes = await api.thread_pool.run(event_submitter.submit, object_events(body))
        return json_response(
            {
                "outcomes": [
                    {"uri": o.uri, "job_id": o.job_id, "created": o.created, "reason": o.reason}
                    for o in outcomes
                ]
            }
        )

    return router


def _wants_confirmation(body: bytes) -> bool:
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and cast("dict[str, Any]", document).get("Type") == _CONFIRMATION
