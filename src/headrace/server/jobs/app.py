"""The HTTP API of jobs as one ASGI application."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from headrace.jobs.access import JobAccess
from headrace.jobs.desk import JobDesk
from headrace.jobs.triggering import Triggering
from headrace.server.jobs.api import Api, ApiSettings, answer, problems
from headrace.server.jobs.event_notice_routes import event_notice_routes
from headrace.server.jobs.events import event_routes
from headrace.server.jobs.frame import Frame, on_http_exception, on_validation_error
from headrace.server.jobs.job_routes import SCHEMAS, job_routes
from headrace.server.jobs.models import HealthModel
from headrace.server.jobs.payload_routes import payload_routes
from headrace.server.jobs.queue_routes import queue_routes
from headrace.server.jobs.vendor import VendorSettings, vendor_routes
from headrace.server.jobs.workroom import Workroom

_ABOUT = (
    "Submit now, fetch later: jobs that outlive a request. Times are milliseconds since the epoch. Where keys are asked for, "
    "they come as `Authorization: Bearer KEY`."
)


def jobs_app(
    desk: JobDesk,
    access: JobAccess,
    *,
    version: str,
    settings: ApiSettings | None = None,
    workroom: Workroom | None = None,
    vendor: VendorSettings | None = None,
    triggering: Triggering | None = None,
) -> FastAPI:
    """Put the API together, for one event loop. The desk is started before it is served, and stopped after.

    `workroom` is closed by whoever gave it. With `vendor` there is the vendor's asynchronous door too, and with `triggering`
    object events make jobs.
    """
    api = Api(desk, access, settings or ApiSettings(), workroom or Workroom())
    app = FastAPI(
        title="headrace jobs",
        description=_ABOUT,
        version=version,
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(Frame)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    # Before `/{job_id}`, of which they are parts.
    notices = event_notice_routes(api, triggering)
    for router in (event_routes(api), payload_routes(api), job_routes(api), queue_routes(api), notices):
        app.include_router(router)
    _health(app, api)
    if vendor is not None:
        app.include_router(vendor_routes(api, vendor))
    app.openapi = _described(app, guarded=not access.open)
    return app


def _health(app: FastAPI, api: Api) -> None:
    @app.get("/v1/health/live", tags=["health"], response_model=HealthModel)
    async def live() -> Response:
        """Whether this process answers. Needs no key."""
        return answer({"status": "ok"})

    @app.get("/v1/health/ready", tags=["health"], response_model=HealthModel, responses=problems())
    async def ready(request: Request) -> Response:  # noqa: ARG001
        """Whether jobs can be submitted: the ledger's database answers. Needs no key."""
        await api.workroom.run(api.desk.check_ready)
        return answer({"status": "ok"})


def _described(app: FastAPI, *, guarded: bool) -> Any:
    """OpenAPI, with what no signature tells: how keys are sent, and the models of bodies that are read elsewhere."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = plain()
        components = schema.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        for model in SCHEMAS:
            told = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= told.pop("$defs", {})
            schemas[model.__name__] = told
        if guarded:
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"key": []}]
        # Their place is taken by `ProblemModel`.
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None) if _is_framework(operation) else None
        return schema

    return openapi


def _is_framework(operation: dict[str, Any]) -> bool:
    content = operation["responses"].get("422", {}).get("content", {})
    return "HTTPValidationError" in str(content)
