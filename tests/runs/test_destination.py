"""A destination with the name of a file is refused before a run reads, loads or writes anything."""

import re
import subprocess

import pytest
from click.testing import CliRunner

from cases import for_each
from headrace.app.runs import run_sync
from headrace.cli import main
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.core.tensor import TensorSpec
from headrace.formats.read_options import ReadOptions
from headrace.runs.output_settings import OutputSettings
from headrace.runs.parts import check_folder
from headrace.runs.settings import StreamSettings
from headrace.storage.resolve import Stores


class First(Model):
    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    max_batch_rows = 8

    def predict(self, x):
        return {"y": x[:, 0]}


def refusal(destination: str, stores: Stores | None = None, **more) -> str:
    with pytest.raises(ConfigError) as caught:
        check_folder(destination, stores or Stores(), StreamSettings(**more))
    return str(caught.value)


@for_each(
    ("destination", "folder"),
    [
        ("out.csv", "out/"),
        ("a.b/out.v2.JSONL", "a.b/out/"),
        ("./out.csv.gz", "./out/"),
        ("out.tar.zst", "out/"),
        ("out.parquet", "out/"),
        ("memory://bucket/day/out.csv", "memory://bucket/day/out/"),
    ],
)
def test_names_of_files_are_refused_with_a_folder_to_write(destination, folder):
    assert f"write {folder} instead (or {destination}/ " in refusal(destination)


@for_each(
    "destination", ["out", "out.csv/", "2026.11", "v1.2", ".csv", "memory://b/out.csv/", "memory://b/x.y"]
)
def test_other_names_are_folders(destination):
    check_folder(destination, Stores(), StreamSettings())


def test_existing_folder_is_accepted(tmp_path):
    (tmp_path / "out.csv").mkdir()
    (tmp_path / "out.csv" / "part-00000.csv").touch()
    check_folder(f"{tmp_path}/out.csv", Stores(), StreamSettings())
    stores = Stores()
    stores.for_uri("memory://b/").put("memory://b/out.csv/_headrace/run.json", b"{}")
    check_folder("memory://b/out.csv", stores, StreamSettings())
    assert "is the name of a file" in refusal("memory://b/out.cs.csv", stores)


def test_existing_file_is_refused(tmp_path):
    (tmp_path / "out.csv").write_text("1\n")
    assert "is the name of a file" in refusal(f"{tmp_path}/out.csv")


def test_buckets_need_a_copy_and_parquet_cannot_be_joined():
    copied = "(copy them to a disk first): cat memory://b/out/part-?????.csv > out.csv"
    assert copied in refusal("memory://b/out.csv")
    assert "join" not in refusal("out.parquet", output=OutputSettings(format="parquet"))


@for_each(
    ("read", "output"),
    [
        (ReadOptions(header="none"), {}),
        (ReadOptions(header="none"), {"header": True}),
        (ReadOptions(header="none"), {"format": "jsonl"}),
        (ReadOptions(header="names"), {}),
        (ReadOptions(header="names"), {"header": False}),
    ],
)
def test_command_of_the_message_joins_the_parts(tmp_path_factory, read, output):
    folder = tmp_path_factory.mktemp("joined")
    rows = ["p,q", *(f"{i},1" for i in range(50))]
    (folder / "in.csv").write_text("".join(f"{line}\n" for line in rows))
    settings = StreamSettings(read=read, output=OutputSettings(part_bytes_max=100, **output))
    kind = output.get("format", "csv")
    why = refusal(f"{folder}/out.{kind}", read=read, output=settings.output)
    report = run_sync(f"{folder}/in.csv", output=f"{folder}/out/", model=First, settings=settings)
    command = re.search(r"afterwards: (.*)\. For", why)
    subprocess.run(["sh", "-c", command[1]], check=True)
    lines = (folder / f"out.{kind}").read_text().splitlines()
    assert report.parts > 2
    assert report.rows_failed == (0 if read.header == "names" else 1), "a header that is data fails"
    has_header = output.get("header", read.header == "names") and kind == "csv"
    assert len(lines) == 50 + has_header
    assert lines.count("y") == has_header


@for_each("output", ["out.csv", "memory://bucket/out.jsonl"])
def test_command_refuses_before_it_opens_source_or_model(output):
    done = CliRunner().invoke(main, ["stream", "absent.csv", "--model", "absent.py", "--output", output])
    assert done.exit_code == 1
    assert done.stderr.startswith(
        f"error: {output} is the name of a file, but a run writes a folder of parts"
    )
