import pytest

from headrace.beam import ModelHandler, RemoteModelHandler

URL = "http://127.0.0.1:9/v2/models/m"


@pytest.mark.parametrize(
    ("handler", "own"),
    [(ModelHandler("m.onnx"), "Headrace"), (RemoteModelHandler(URL, namespace="theirs"), "theirs")],
)
def test_what_one_pipeline_calls_its_metrics_the_next_one_does_not(handler, own):
    """One handler may be in several pipelines, one after the other."""
    for named, used in [("mine", "mine"), ("", own)]:
        assert handler.override_metrics(named) is False
        assert handler._namespace == used
        assert handler.get_metrics_namespace() == own
