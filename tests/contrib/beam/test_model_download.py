"""Models in an object store."""

import pytest

from contrib.beam.support import rows, summarize, write_model
from headrace.beam import ModelHandler
from headrace.contrib.beam.loaded_model import download_model
from headrace.core.errors import ConfigError, NotFoundError
from headrace.storage.resolve import Stores


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The parent of downloaded models."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return temporary


@pytest.fixture
def stores():
    with Stores() as stores:
        yield stores


def put(stores, uri, data):
    stores.for_uri(uri).put(uri, data)


def test_local_path_is_unchanged():
    assert download_model("models/churn.onnx").spec == "models/churn.onnx"
    assert download_model("package.module:Class").folder is None


@pytest.mark.parametrize("class_suffix", ["", ":Plus"])
def test_file_keeps_its_name_and_class(stores, class_suffix):
    put(stores, "memory://models/a/plus.py", b"code")
    model = download_model(f"memory://models/a/plus.py{class_suffix}", stores)
    assert model.spec == f"{model.folder / 'plus.py'}{class_suffix}"
    assert (model.folder / "plus.py").read_bytes() == b"code"


def test_folder_is_downloaded_with_all_files(stores):
    put(stores, "memory://models/bert/config.json", b"{}")
    put(stores, "memory://models/bert/weights/one.bin", b"1")
    model = download_model("memory://models/bert/", stores)
    assert model.spec == str(model.folder / "bert")
    assert (model.folder / "bert" / "weights" / "one.bin").read_bytes() == b"1"


def test_failed_download_leaves_no_folder(stores, temporary):
    with pytest.raises(NotFoundError):
        download_model("memory://models/gone.onnx", stores)
    with pytest.raises(ConfigError, match="nothing below it"):
        download_model("memory://models/gone/", stores)
    assert list(temporary.iterdir()) == []


def test_files_are_removed_with_the_model(tmp_path, temporary):
    spec = write_model(tmp_path)
    handler = ModelHandler(f"file://{spec}")
    assert handler.batch_elements_kwargs() == {"max_batch_size": 1024}
    loaded = handler.load_model()
    (result,) = handler.run_inference(rows(1), loaded)
    assert (summarize(result), result.model_id) == ((1, 2), f"file://{spec}")
    assert len(list(temporary.iterdir())) == 1
    loaded.close()
    assert list(temporary.iterdir()) == []
    (tmp_path / "plus.py").write_text("no = ")
    with pytest.raises(Exception, match=r"plus\.py"):
        handler.load_model()
    assert list(temporary.iterdir()) == []
