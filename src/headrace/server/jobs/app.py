"""The HTTP API of jobs as one ASGI application."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from headrace.jobs.access import JobAccess
from headrace.jobs.service import JobService
from headrace.jobs.trigger import EventSubmitter, Triggers
from headrace.server.jobs.api import Api, ApiSettings, error_responses, json_response
from headrace.server.jobs.event_notice_routes import event_notice_routes
from headrace.server.jobs.events import event_routes
from headrace.server.jobs.job_routes import SCHEMAS, job_routes
from headrace.server.jobs.middleware import RequestMiddleware, on_http_exception, on_validation_error
from headrace.server.jobs.models import HealthModel
from headrace.server.jobs.payload_routes import payload_routes
from headrace.server.jobs.queue_routes import queue_routes
from headrace.server.jobs.sagemaker import SageMakerSettings, sagemaker_routes
from headrace.server.jobs.thread_pool import BoundedThreadPool

_DESCRIPTION = (
    "Jobs run in the background: submit a job now and fetch its result later. Times are milliseconds since "
    "the epoch. If the server requires keys, send `Authorization: Bearer KEY`."
)


def jobs_app(
    service: JobService,
    access: JobAccess,
    *,
    version: str,
    settings: ApiSettings | None = None,
    thread_pool: BoundedThreadPool | None = None,
    sagemaker: SageMakerSettings | None = None,
    event_submitter: EventSubmitter | None = None,
) -> FastAPI:
    """Return the API for one event loop.

    The caller starts `service` before it serves the application and stops it afterwards. The caller
    closes `thread_pool` if it passed one. With `sagemaker` the API also has the route for SageMaker
    clients. With `event_submitter`, object events submit jobs.
    """
    api = Api(service, access, settings or ApiSettings(), thread_pool or BoundedThreadPool())
    app = FastAPI(
        title="headrace jobs",
        description=_DESCRIPTION,
        version=version,
        # FastAPI's documentation pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(RequestMiddleware)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    # These routes come before `/{job_id}`, which would match their paths.
    notices = event_notice_routes(
        api, event_submitter or EventSubmitter(Triggers(()), service.submit_internal)
    )
    for router in (event_routes(api), payload_routes(api), job_routes(api), queue_routes(api), notices):
        app.include_router(router)
    _health(app, api)
    if sagemaker is not None:
        app.include_router(sagemaker_routes(api, sagemaker))
    app.openapi = _openapi_builder(app, guarded=not access.open)
    return app


def _health(app: FastAPI, api: Api) -> None:
    @app.get("/v1/health/live", summary="Check liveness", tags=["health"], response_model=HealthModel)
    async def live() -> Response:
        """Report that the process responds. No key is needed."""
        return json_response({"status": "ok"})

    @app.get(
        "/v1/health/ready",
        summary="Check readiness",
        tags=["health"],
        response_model=HealthModel,
        responses=error_responses(),
    )
    async def ready(request: Request) -> Response:  # noqa: ARG001
        """Report that jobs can be submitted: the database of the ledger responds. No key is needed."""
        await api.thread_pool.run(api.service.check_ready)
        return json_response({"status": "ok"})


def _openapi_builder(app: FastAPI, *, guarded: bool) -> Any:
    """Return the OpenAPI generator of the application.

    It adds the security scheme, and the models of bodies that other modules parse.
    """
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = plain()
        components = schema.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        for model in SCHEMAS:
            model_schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= model_schema.pop("$defs", {})
            schemas[model.__name__] = model_schema
        if guarded:
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"key": []}]
        # `ProblemModel` replaces these schemas.
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
