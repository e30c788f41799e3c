"""Models in an object store."""

from pathlib import Path

import pytest

from contrib.beam.support import rows, summarize, write_model
from headrace.beam import ModelHandler
from headrace.core.errors import NotFoundError
from headrace.runtimes.model_cache import CACHE_VARIABLE


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of fetched models."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_all_processes_of_a_machine_share_a_fetched_model(tmp_path, cache, http_files):
    http_files.objects["/plus.py"] = Path(write_model(tmp_path)).read_bytes()
    uri = f"{http_files.url}/plus.py"
    handler = ModelHandler(f"{uri}:Plus")
    assert handler.batch_elements_kwargs() == {"max_batch_size": 1024}, "building a pipeline fetches nothing"
    assert http_files.requests == []
    for _ in range(2):
        loaded = handler.load_model()
        (result,) = handler.run_inference(rows(1), loaded)
        assert (summarize(result), result.model_id) == ((1, 2), f"{uri}:Plus")
        loaded.close()
    assert len(list(cache.glob("models/*/*/plus.py"))) == 1
    assert [method for method, _, _ in http_files.requests].count("GET") == 1


def test_missing_model_is_an_error(http_files):
    with pytest.raises(NotFoundError):
        ModelHandler(f"{http_files.url}/gone.onnx").load_model()
