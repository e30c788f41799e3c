"""The route that stores, and what carries their notices, post object events to."""

import logging
from typing import Any, Final, cast

import orjson
from fastapi import APIRouter, Request, Response

from headrace.jobs.access import Scope
from headrace.jobs.triggering import Triggering
from headrace.protocols.object_events import NOTICE_BYTES_MAX, object_events
from headrace.server.jobs.api import Api, answer, problems
from headrace.server.jobs.models import EventOutcomesModel

_CONFIRMATION: Final = "SubscriptionConfirmation"

_log = logging.getLogger("headrace.jobs.events")


def event_notice_routes(api: Api, triggering: Triggering) -> APIRouter:
    """The route, for one API."""
    router = APIRouter(prefix="/v1/events", tags=["events"])

    @router.post("/s3", response_model=EventOutcomesModel, responses=problems(400, 413, 429))
    async def s3(request: Request) -> Response:
        """Take a notice of objects that were created, and submit the jobs that its triggers ask for.

        AWS, MinIO and Ceph, bare or wrapped by SNS, SQS or EventBridge. Told twice, or in disorder, it makes no job twice.
        """
        api.caller(request, Scope.EVENTS)
        body = await api.body(request, NOTICE_BYTES_MAX)
        if _wants_confirmation(body):
            # Its address is not asked: anybody could have named it.
            _log.warning("SNS asks to confirm a subscription: confirm it in its console, or by its API")
            return answer({"outcomes": []})
        outcomes = await api.workroom.run(triggering.take, object_events(body))
        return answer(
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
