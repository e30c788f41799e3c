"""The routes of schedules."""

from typing import Any, Final

from headrace.jobs.access import CHANGE_SCOPES, ApiKey, Scope
from headrace.jobs.schedules import JobSchedule, ScheduleSettings, read_schedule_name, schedule_document
from headrace.server.http import Exchange
from headrace.server.jobs.api import ERRORS, ApiHandlers, respond_json
from headrace.server.jobs.documents import (
    JobDocument,
    ScheduleDocument,
    ScheduleQuery,
    SchedulesDocument,
    ScheduleSettingsDocument,
)
from headrace.server.jobs.job_routes import IDEMPOTENCY_KEY
from headrace.server.routes import read_json, read_query, route

_SEE: Final = (Scope.READ, Scope.SUBMIT)
_SUBMIT: Final = (Scope.SUBMIT,)
_SCHEDULE: Final = "/v1/schedules/{schedule}"
_BODY_BYTES_MAX: Final = 1 << 17
_NEXT_TIMES: Final = 5


class ScheduleHandlers(ApiHandlers):
    """The handlers of the routes of schedules. Their docstrings are the descriptions for clients."""

    @route("GET", "/v1/schedules", _SEE, SchedulesDocument, query=ScheduleQuery, errors=ERRORS)
    async def list_schedules(self, exchange: Exchange) -> None:
        """List the schedules of the key's tenant by name, without their jobs.

        Keys with `operate` see those of all tenants, or of one.
        """
        tenant = read_query(ScheduleQuery, exchange.query).tenant
        found = await self._run(self._service.schedules.find, exchange.client, tenant=tenant)
        documents = [schedule_document(each, with_job=False, times=1) for each in found]
        await respond_json(exchange, {"schedules": documents})

    @route("GET", _SCHEDULE, _SEE, ScheduleDocument, query=ScheduleQuery, errors=(*ERRORS, 404))
    async def get_schedule(self, exchange: Exchange) -> None:
        """Return a schedule with its next five times."""
        tenant = read_query(ScheduleQuery, exchange.query).tenant
        key, name = exchange.client, _name_of(exchange)
        schedule = await self._run(self._service.schedules.get, key, name, tenant=tenant)
        await respond_json(exchange, _document(key, schedule))

    @route(
        "PUT",
        _SCHEDULE,
        _SUBMIT,
        ScheduleDocument,
        request=(ScheduleSettingsDocument,),
        errors=(*ERRORS, 404, 408, 413),
    )
    async def set_schedule(self, exchange: Exchange) -> None:
        """Create a schedule of the key's tenant, or replace all its settings.

        The job is checked as a submission with this key is, and its jobs are submitted with the rights
        that the key has at that time. A paused schedule stays paused. Changed settings have a new
        version, and the next time is the first one from now on.
        """
        body = read_json(ScheduleSettingsDocument, await exchange.body(_BODY_BYTES_MAX))
        settings = ScheduleSettings(body.cron, body.job, body.time_zone, body.overlap)
        key, name = exchange.client, _name_of(exchange)
        schedule = await self._run(self._service.schedules.set, key, name, settings)
        await respond_json(exchange, _document(key, schedule))

    @route(
        "DELETE",
        _SCHEDULE,
        CHANGE_SCOPES,
        query=ScheduleQuery,
        status=204,
        success="The schedule is deleted.",
        errors=(*ERRORS, 404),
    )
    async def delete_schedule(self, exchange: Exchange) -> None:
        """Delete a schedule. Its jobs stay."""
        tenant = read_query(ScheduleQuery, exchange.query).tenant
        await self._run(self._service.schedules.delete, exchange.client, _name_of(exchange), tenant=tenant)
        await exchange.respond(204)

    @route(
        "POST",
        f"{_SCHEDULE}/pause",
        CHANGE_SCOPES,
        ScheduleDocument,
        query=ScheduleQuery,
        errors=(*ERRORS, 404),
    )
    async def pause_schedule(self, exchange: Exchange) -> None:
        """Submit no jobs until the schedule is resumed."""
        await self._set_paused(exchange, paused=True)

    @route(
        "POST",
        f"{_SCHEDULE}/resume",
        CHANGE_SCOPES,
        ScheduleDocument,
        query=ScheduleQuery,
        errors=(*ERRORS, 404),
    )
    async def resume_schedule(self, exchange: Exchange) -> None:
        """Submit jobs again, from the first time after now. The times of the pause have no job."""
        await self._set_paused(exchange, paused=False)

    @route(
        "POST",
        f"{_SCHEDULE}/run",
        _SUBMIT,
        JobDocument,
        parameters=(IDEMPOTENCY_KEY,),
        status=202,
        alternatives={200: (JobDocument, "The job of an earlier request with the same idempotency key.")},
        errors=(*ERRORS, 404, 409, 413, 422),
    )
    async def run_schedule(self, exchange: Exchange) -> None:
        """Submit the job of a schedule of the key's tenant now, with the rights of the key.

        Placeholders have the current time. The schedule keeps its next time and its last run.
        """
        key, name = exchange.client, _name_of(exchange)
        text = exchange.header(b"idempotency-key") or ""
        submitting = self._run(self._service.schedules.run, key, name, idempotency_key=text)
        await self._api.respond_submitted(exchange, await self._api.committed(submitting))

    async def _set_paused(self, exchange: Exchange, *, paused: bool) -> None:
        tenant = read_query(ScheduleQuery, exchange.query).tenant
        key, name = exchange.client, _name_of(exchange)
        change = self._service.schedules.set_paused
        schedule = await self._run(change, key, name, paused=paused, tenant=tenant)
        await respond_json(exchange, _document(key, schedule))


def _document(key: ApiKey, schedule: JobSchedule) -> dict[str, Any]:
    with_notify = not key.granted.isdisjoint(CHANGE_SCOPES)
    return schedule_document(schedule, with_notify=with_notify, times=_NEXT_TIMES)


def _name_of(exchange: Exchange) -> str:
    return read_schedule_name(exchange.arguments["schedule"])
