"""The documents of Kubernetes' external metrics API, ``external.metrics.k8s.io/v1beta1``. Pure.

A HorizontalPodAutoscaler selects the series of a metric by a label selector, and adds their values.
The documents of discovery list the resources of the group, for an API server and its clients.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from headrace.core.errors import DataError

GROUP: Final = "external.metrics.k8s.io"
VERSION: Final = "v1beta1"
GROUP_VERSION: Final = f"{GROUP}/{VERSION}"
SELECTOR_CHARS_MAX: Final = 4096

_Json = dict[str, Any]
_TOKEN: Final = re.compile(r"[ \t\r\n]*([^ \t\r\n=!(),<>]+|==|!=|[=!(),<>]|\Z)")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DNS_LABEL: Final = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_PREFIX: Final = re.compile(rf"(?=.{{1,253}}\Z){_DNS_LABEL}(\.{_DNS_LABEL})*")
_REASONS: Final = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    408: "Timeout",
    503: "ServiceUnavailable",
}
"""The `StatusReason` of each HTTP status. Any other status is an internal error."""


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """A condition of a label: it is present, with one of `values` unless these are None.

    `negated` reverses the condition, so that labels without the key match.
    """

    key: str
    values: frozenset[str] | None = None
    negated: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if labels satisfy the condition."""
        present = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return present != self.negated


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Conditions of labels, all of which have to be satisfied."""

    requirements: tuple[LabelRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if labels satisfy all conditions."""
        return all(requirement.matches(labels) for requirement in self.requirements)


def parse_label_selector(text: str) -> LabelSelector:
    """Return a label selector in the grammar of Kubernetes, such as ``pool in (gpu,cpu),!retired``.

    The comparisons ``>`` and ``<`` are refused, because no label of a metric is a number.

    Raises:
        DataError: The text is no selector, or is too long.
    """
    if len(text) > SELECTOR_CHARS_MAX:
        raise DataError(f"labelSelector: longer than the limit of {SELECTOR_CHARS_MAX} characters")
    return _SelectorParser(text).selector()


class _SelectorParser:
    """A reader of the tokens of one selector. The end of the text is the empty token."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._next = 0

    def selector(self) -> LabelSelector:
        if self._peek() == "":
            return LabelSelector()
        requirements = [self._requirement()]
        while self._take(",", "") == ",":
            requirements.append(self._requirement())
        return LabelSelector(tuple(requirements))

    def _requirement(self) -> LabelRequirement:
        negated = self._peek() == "!"
        if negated:
            self._pop()
        key = self._key()
        if negated or self._peek() in (",", ""):
            return LabelRequirement(key, None, negated)
        operator = self._take("=", "==", "!=", "in", "notin")
        values = self._values() if operator in ("in", "notin") else [self._value()]
        return LabelRequirement(key, frozenset(values), operator in ("!=", "notin"))

    def _key(self) -> str:
        key = self._pop()
        prefix, slash, name = key.rpartition("/")
        if not _NAME.fullmatch(name) or (slash and not _PREFIX.fullmatch(prefix)):
            raise _unexpected(key, "the name of a label")
        return key

    def _values(self) -> list[str]:
        self._take("(")
        values = [self._value()]
        while self._take(",", ")") == ",":
            values.append(self._value())
        return values

    def _value(self) -> str:
        if self._peek() in (",", ")", ""):
            return ""
        value = self._pop()
        if not _NAME.fullmatch(value):
            raise _unexpected(value, "a value: at most 63 letters, digits, '-', '_' and '.'")
        return value

    def _peek(self) -> str:
        return self._tokens[self._next]

    def _pop(self) -> str:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _take(self, *expected: str) -> str:
        token = self._pop()
        if token not in expected:
            raise _unexpected(token, " or ".join(map(_shown, expected)))
        return token


def _unexpected(token: str, expected: str) -> DataError:
    return DataError(f"labelSelector: found {_shown(token)}, expected {expected}")


def _shown(token: str) -> str:
    return f"{token!a:.80}" if token else "the end"


# Documents


@dataclass(frozen=True, slots=True)
class ExternalMetricValue:
    """The value of one series of a metric, as of a time."""

    labels: Mapping[str, str]
    value: int
    at_ms: int


def group_list_document() -> _Json:
    """Return the ``APIGroupList`` of a server with this group alone."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]}


def group_document() -> _Json:
    """Return the ``APIGroup``."""
    return {"kind": "APIGroup", "apiVersion": "v1", **_group()}


def _group() -> _Json:
    version = {"groupVersion": GROUP_VERSION, "version": VERSION}
    return {"name": GROUP, "versions": [version], "preferredVersion": version}


def resource_list_document(metrics: Iterable[str]) -> _Json:
    """Return the ``APIResourceList``: each metric is a resource."""
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP_VERSION,
        "resources": [
            {
                "name": metric,
                "singularName": "",
                "namespaced": True,
                "kind": "ExternalMetricValueList",
                "verbs": ["get"],
            }
            for metric in metrics
        ],
    }


def value_list_document(metric: str, values: Sequence[ExternalMetricValue]) -> _Json:
    """Return the ``ExternalMetricValueList`` of a metric."""
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": GROUP_VERSION,
        "metadata": {},
        "items": [
            {
                "metricName": metric,
                "metricLabels": dict(each.labels),
                "timestamp": _rfc3339(each.at_ms),
                "value": str(each.value),
            }
            for each in values
        ],
    }


def status_document(code: int, message: str) -> _Json:
    """Return the ``Status`` of an error with an HTTP status."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, "InternalError"),
        "code": code,
    }


def _rfc3339(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
