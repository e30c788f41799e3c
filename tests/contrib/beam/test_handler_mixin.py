import pytest

from headrace.beam import ModelHandler, RemoteModelHandler

URL = "http://127.0.0.1:9/v2/models/m"


@pytest.mark.parametrize(
    ("handler", "own"),
    [(ModelHandler("m.onnx"), "Headrace"), (RemoteModelHandler(URL, namespace="theirs"), "theirs")],
)
def test_metrics_namespace_is_per_pipeline(handler, own):
    """A handler may be in several pipelines, one after the other."""
    for given, expected in [("mine", "mine"), ("", own)]:
        assert handler.override_metrics(given) is False
        assert handler._namespace == expected
        assert handler.get_metrics_namespace() == own
