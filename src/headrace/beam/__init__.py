"""headrace models inside Apache Beam: handlers for Beam's own RunInference. Needs the extra `beam`."""

from headrace.beam.elements import ElementFailure
from headrace.beam.handler import ModelHandler
from headrace.beam.loaded_model import LoadedModel
from headrace.beam.remote import RemoteModelHandler
from headrace.beam.results import SplitFailures, SplitResults

__all__ = [
    "ElementFailure",
    "LoadedModel",
    "ModelHandler",
    "RemoteModelHandler",
    "SplitFailures",
    "SplitResults",
]
