"""What an endpoint's answer must hold, whatever it is asked by."""

from collections.abc import Collection

from headrace.core.errors import ModelContractError
from headrace.core.tensor import InferRequest


def require_outputs(request: InferRequest, found: Collection[str], model: str) -> None:
    """Raise ModelContractError, naming what there is, unless all outputs that the request asks for are among `found`."""
    missing = [name for name in request.outputs if name not in found]
    if missing:
        raise ModelContractError(
            model,
            f"{called(request)}the endpoint answered without output {', '.join(map(repr, missing))} "
            f"(it has {', '.join(found)})",
        )


def called(request: InferRequest) -> str:
    """How a message about a request begins; empty where it has no id."""
    return f"request {request.id}: " if request.id else ""
