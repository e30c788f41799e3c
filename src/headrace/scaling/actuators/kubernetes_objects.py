"""The objects of the API of Kubernetes that scaling reads, with the fields that it uses."""

from typing import Final

import msgspec

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""The annotation that orders the pods of a ReplicaSet for deletion; the lowest go first."""
ENDED_PHASES: Final = ("Failed", "Succeeded")


class ApiObject(msgspec.Struct, rename="camel"):
    """An object of the API, or a part of one. Unknown fields are ignored."""


class ObjectMetadata(ApiObject):
    """The metadata of an object."""

    name: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class ScaleSpec(ApiObject):
    """The wanted number of pods."""

    replicas: int = 0
    """The API leaves out the field for 0 replicas."""


class ScaleStatus(ApiObject):
    """The selector of the pods of a Deployment, as text."""

    selector: str = ""


class DeploymentScale(ApiObject):
    """The scale subresource of a Deployment."""

    metadata: ObjectMetadata
    spec: ScaleSpec
    status: ScaleStatus


class PodStatus(ApiObject):
    """The phase of a pod."""

    phase: str = ""


class Pod(ApiObject):
    """A pod."""

    metadata: ObjectMetadata
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def lives(self) -> bool:
        """True unless the pod has ended, or is being deleted."""
        return self.metadata.deletion_timestamp is None and self.status.phase not in ENDED_PHASES

    @property
    def cost(self) -> str:
        """The deletion cost as text; "0" without one, as for Kubernetes."""
        return (self.metadata.annotations or {}).get(DELETION_COST, "0")


class ListMetadata(ApiObject):
    """The position in a list that comes in pages."""

    next_page: str = msgspec.field(default="", name="continue")


class PodList(ApiObject):
    """A page of pods."""

    metadata: ListMetadata
    items: list[Pod] | None = None


class ReviewStatus(ApiObject):
    """The result of a review."""

    allowed: bool = False


class AccessReview(ApiObject):
    """A review of the rights of the account."""

    status: ReviewStatus


class FailureStatus(ApiObject):
    """The body of a response that reports a failure."""

    message: str = ""
