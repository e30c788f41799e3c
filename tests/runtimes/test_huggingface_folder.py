"""Settings in a folder's small files."""

import json

import pytest

from cases import for_each
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.runtimes.huggingface_parts import read_sentence_settings, read_task


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


@for_each(
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
def test_architecture_gives_the_task(folder, architecture, task):
    assert read_task(folder(config={"architectures": [architecture, "Other"]})) == task


@for_each(
    "config",
    [[], {}, {"architectures": []}, {"architectures": "Bert"}, {"architectures": ["BertForNothing"]}],
)
def test_unknown_architecture_needs_a_task(folder, config):
    with pytest.raises(ConfigError, match="set the option task"):
        read_task(folder(config=config))


def test_unreadable_configuration_fails(folder, tmp_path):
    with pytest.raises(ModelLoadError, match=r"config\.json cannot be read: FileNotFoundError"):
        read_task(tmp_path)
    with pytest.raises(ModelLoadError, match=r"config\.json cannot be read: JSONDecodeError"):
        read_task(folder(config="{"))


def test_sentence_transformers_settings_are_read(folder, tmp_path):
    assert read_sentence_settings(tmp_path) == ("mean", False, None)
    written = folder(
        modules=[
            {"type": "sentence_transformers.models.Transformer"},
            {"type": "sentence_transformers.models.Normalize"},
        ],
        sentence_bert_config={"max_seq_length": 256},
        **{"1_Pooling__config": {"pooling_mode_cls_token": True}},
    )
    assert read_sentence_settings(written) == ("cls", True, 256)
