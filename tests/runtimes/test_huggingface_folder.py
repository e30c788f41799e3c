"""What a folder's small files say."""

import json

import pytest

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.runtimes.huggingface_folder import sentence_settings, task_of


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/")
            path = path.with_name(f"{path.name}.json")
            path.parent.mkdir(exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("BertForSequenceClassification", "text-classification"),
        ("BertForTokenClassification", "token-classification"),
        ("GPT2LMHeadModel", "text-generation"),
        ("LlamaForCausalLM", "text-generation"),
        ("BertForMaskedLM", "fill-mask"),
        ("BertModel", "feature-extraction"),
    ],
)
def test_the_architecture_tells_the_task(folder, architecture, task):
    assert task_of(folder(config={"architectures": [architecture, "Other"]})) == task


@pytest.mark.parametrize(
    "config",
    [[], {}, {"architectures": []}, {"architectures": "Bert"}, {"architectures": ["BertForNothing"]}],
)
def test_what_tells_no_task_asks_for_it(folder, config):
    with pytest.raises(ConfigError, match="say what it is for with the option task"):
        task_of(folder(config=config))


def test_a_configuration_that_cannot_be_read(folder, tmp_path):
    with pytest.raises(ModelLoadError, match=r"config\.json cannot be read: FileNotFoundError"):
        task_of(tmp_path)
    with pytest.raises(ModelLoadError, match=r"config\.json cannot be read: JSONDecodeError"):
        task_of(folder(config="{"))


def test_sentence_transformers_files_are_heeded(folder, tmp_path):
    assert sentence_settings(tmp_path) == ("mean", False, None)
    written = folder(
        modules=[
            {"type": "sentence_transformers.models.Transformer"},
            {"type": "sentence_transformers.models.Normalize"},
        ],
        sentence_bert_config={"max_seq_length": 256},
        **{"1_Pooling__config": {"pooling_mode_cls_token": True}},
    )
    assert sentence_settings(written) == ("cls", True, 256)
