"""headrace models inside Apache Beam: handlers for Beam's own RunInference. Needs the extra `beam`."""

from headrace.contrib.beam.elements import ElementFailure
from headrace.contrib.beam.handler import ModelHandler, SplitFailures, SplitResults
from headrace.contrib.beam.loaded_model import LoadedModel
from headrace.contrib.beam.remote import RemoteModelHandler

__all__ = [
    "ElementFailure",
    "LoadedModel",
    "ModelHandler",
    "RemoteModelHandler",
    "SplitFailures",
    "SplitResults",
]
