"""headrace models inside Apache Beam: handlers for Beam's own RunInference. Needs the extra `beam`."""

from headrace.contrib.beam.elements import ElementFailure
from headrace.contrib.beam.handler import ModelHandler
from headrace.contrib.beam.loaded_model import LoadedModel
from headrace.contrib.beam.remote import RemoteModelHandler
from headrace.contrib.beam.results import SplitFailures, SplitResults

__all__ = [
    "ElementFailure",
    "LoadedModel",
    "ModelHandler",
    "RemoteModelHandler",
    "SplitFailures",
    "SplitResults",
]
