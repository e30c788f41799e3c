"""headrace models inside Apache Beam: handlers for Beam's own RunInference. Needs the extra `beam`."""

from headrace.contrib.beam import (
    ElementFailure,
    LoadedModel,
    ModelHandler,
    RemoteModelHandler,
    SplitFailures,
    SplitResults,
)

__all__ = [
    "ElementFailure",
    "LoadedModel",
    "ModelHandler",
    "RemoteModelHandler",
    "SplitFailures",
    "SplitResults",
]
