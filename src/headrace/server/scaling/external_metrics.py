"""The decisions about pools as a metric for a HorizontalPodAutoscaler, behind the API server of Kubernetes.

The aggregation layer of the API server forwards ``/apis/external.metrics.k8s.io`` to this
application. It has authenticated and authorized the client, and proves by a client certificate that
it is the API server; the listener checks the certificate.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

import orjson

from headrace.core.errors import UncontrolledPoolError
from headrace.jobs.pools import WORKERS_WANTED, Pool
from headrace.protocols.external_metrics import (
    GROUP,
    GROUP_VERSION,
    ExternalMetricValue,
    LabelSelector,
    group_document,
    group_list_document,
    parse_label_selector,
    resource_list_document,
    status_document,
    value_list_document,
)
from headrace.server.application import Guard, WebApp
from headrace.server.errors import ErrorStatus, GrpcCode, StatusError
from headrace.server.http import Exchange, Headers
from headrace.server.jobs.api import respond_json
from headrace.server.routes import read_pairs, route, routes_of

_NOT_ACCEPTABLE: Final = 406
_AGGREGATED: Final = "as=apigroupdiscoverylist"


class ExternalMetricsHandlers:
    """The handlers of discovery and of the metric. Errors about pools never become small numbers."""

    def __init__(self, read_pools: Callable[[], Awaitable[Sequence[Pool]]]) -> None:
        self._read_pools = read_pools

    @route("GET", "/apis", (), is_hidden=True)
    async def list_api_groups(self, exchange: Exchange) -> None:
        """Return the list of API groups.

        An API server first requests this list with all resources, which is another type. It requests
        the documents of each group and version only after status 406.
        """
        if not _accepts_plain_json(exchange.header(b"accept") or ""):
            why = "aggregated discovery is not supported: accept application/json"
            raise StatusError(ErrorStatus(_NOT_ACCEPTABLE, GrpcCode.UNIMPLEMENTED, why))
        await respond_json(exchange, group_list_document())

    @route("GET", f"/apis/{GROUP}", (), is_hidden=True)
    async def get_api_group(self, exchange: Exchange) -> None:
        """Return the versions of the API group."""
        await respond_json(exchange, group_document())

    @route("GET", f"/apis/{GROUP_VERSION}", (), is_hidden=True)
    async def list_api_resources(self, exchange: Exchange) -> None:
        """Return the metrics."""
        await respond_json(exchange, resource_list_document([WORKERS_WANTED]))

    @route("GET", f"/apis/{GROUP_VERSION}/namespaces/{{namespace}}/{{metric}}", (), is_hidden=True)
    async def read_external_metric(self, exchange: Exchange) -> None:
        """Return the values of the selected pools. Pools belong to no namespace, so any has all."""
        selector = parse_label_selector(dict(read_pairs(exchange.query)).get("labelSelector", ""))
        metric = exchange.arguments["metric"]
        values: list[ExternalMetricValue] = []
        if metric == WORKERS_WANTED:
            values = _selected_values(await self._read_pools(), selector)
        await respond_json(exchange, value_list_document(metric, values))


def _selected_values(pools: Sequence[Pool], selector: LabelSelector) -> list[ExternalMetricValue]:
    """Return the published decisions about the selected pools, as of the reading.

    The autoscaler adds the values. A sum without a pool would remove workers.

    Raises:
        UncontrolledPoolError: A selected pool has no published decision.
    """
    values: list[ExternalMetricValue] = []
    for pool in pools:
        labels = {"pool": pool.name}
        if selector.matches(labels):
            wanted = pool.published_decision().wanted
            values.append(ExternalMetricValue(labels, wanted, pool.read_at_ms))
    return values


def _accepts_plain_json(accept: str) -> bool:
    """Return False if a client accepts nothing but lists of resources of all groups."""
    types = [each for each in accept.lower().replace(" ", "").split(",") if each]
    return not types or any(_AGGREGATED not in each.split(";") for each in types)


def _error_format(error: Exception, status: ErrorStatus) -> tuple[int, bytes, Headers]:
    """Return an error as a ``Status`` of Kubernetes.

    There is no header ``Retry-After``: Kubernetes' clients would repeat the request ten times at once
    instead of reporting the error. An autoscaler repeats its request every 15 seconds anyway.
    """
    why = status.why
    if isinstance(error, UncontrolledPoolError):
        why += "; the label selector pool=NAME selects one pool and leaves others out"
    return status.http, orjson.dumps(status_document(status.http, why)), ()


def external_metrics_app(
    read_pools: Callable[[], Awaitable[Sequence[Pool]]], guard: Guard | None = None
) -> WebApp:
    """Return the application of the external metrics API, without keys, for one event loop.

    `read_pools` returns all pools, and may raise; such as `SharedReading.wait`.
    """
    handlers = ExternalMetricsHandlers(read_pools)
    # Clients of Kubernetes send "/apis/", too.
    routes = [replace(each, is_lenient=True) for each in routes_of(handlers)]
    return WebApp(routes, guard, error_format=_error_format)
