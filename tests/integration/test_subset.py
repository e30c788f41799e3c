"""``--limit`` and ``--sample``: the command, its report, its plan and the retry of its failures."""

from pathlib import Path

import pytest

from cases import for_each
from integration.command import DOUBLE, contents, headrace, leftovers, predictions

OUT = Path("out")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for each test, with a model and two objects in it."""
    monkeypatch.chdir(tmp_path)
    Path("double.py").write_text(DOUBLE)
    Path("in").mkdir()
    for name, start in (("a.csv", 0), ("b.csv", 1000)):
        Path("in", name).write_bytes(b"".join(b"%d,1\n" % i for i in range(start, start + 1000)))
    return tmp_path


def score(command: str, *args: str | Path, output: Path = OUT):
    places = ["in/", "--output", output] if command == "stream" else ["in/", output]
    return headrace(command, *places, "--model", "double.py", *args)


def values(command: str, output: Path = OUT) -> list[float]:
    if command == "stream":
        return [float(line) for line in predictions(output).split()]
    return [float(line) for path in sorted(output.glob("*.out")) for line in path.read_bytes().split()]


WAYS = [("stream", []), ("stream", ["--workers", "2"]), ("transform", []), ("transform", ["--workers", "2"])]


@for_each(("command", "args"), WAYS)
def test_limit_scores_the_first_records(command, args):
    output = Path(f"out-{command}-{len(args)}")
    done = score(command, "--limit", "1005", "--json", *args, output=output)
    assert done.code == 0
    assert (done.report["records_in"], done.report["limit"], done.report["objects"]) == (1005, 1005, 2)
    assert values(command, output) == [2.0 * i for i in range(1005)]
    again = score(command, "--limit", "1005", "--resume", "--json", *args, output=output)
    assert (again.code, again.report["records_in"]) == (0, 1005)
    other = score(command, "--limit", "1006", "--resume", *args, output=output)
    assert other.code == 1
    assert "settings.subset.limit was 1005, is 1006" in other.error


@for_each(("command", "args"), WAYS)
def test_sample_scores_the_same_records_every_way(command, args):
    output = Path(f"out-{command}-{len(args)}")
    done = score(command, "--sample", "5%", "--sample-seed", "3", "--json", *args, output=output)
    assert done.code == 0
    assert (done.report["sample"], done.report["sample_seed"]) == (0.05, 3)
    found = values(command, output)
    assert 50 < len(found) == done.report["records_in"] < 160
    reference = Path("reference")
    assert (
        score("stream", "--sample", "0.05", "--sample-seed", "3", "--overwrite", output=reference).code == 0
    )
    assert found == values("stream", reference)
    assert score("stream", "--sample", "5%", "--overwrite", output=reference).code == 0
    assert found != values("stream", reference)


def test_report_and_plan_name_the_subset():
    done = score("stream", "--limit", "20", "--sample", "10%", "--quiet")
    assert "subset          the first 20 records of a sample of 10% (seed 0)" in done.out
    plan = score("transform", "--limit", "20", "--sample", "10%", "--dry-run", output=Path("other"))
    assert "subset          the first 20 records of a sample of 10% (seed 0)" in plan.out
    assert "objects         1, " in plan.out
    assert not Path("other").exists()


def test_dry_run_shows_no_more_records_than_the_limit():
    plan = score("transform", "--limit", "2", "--dry-run", "--json")
    (line,) = plan.lines
    assert len(line["records"]) == 2
    assert [one["uri"] for one in line["objects"]] == ["in/a.csv"]
    assert line["settings"]["subset"] == {"limit": 2, "sample": None, "sample_seed": 0}


def test_spec_file_has_the_keys():
    Path("spec.toml").write_text('[headrace]\nlimit = 300\nsample = "50%"\nsample_seed = 2\n')
    done = score("transform", "--spec", "spec.toml", "--json")
    assert done.code == 0
    report = done.report
    assert (report["records_in"], report["limit"], report["sample"], report["sample_seed"]) == (
        300,
        300,
        0.5,
        2,
    )


@for_each(
    ("args", "why"),
    [
        (["--limit", "0"], "--limit"),
        (["--sample", "0"], "must be a share of records above 0 and at most 1"),
        (["--sample", "101%"], "must be a share of records above 0 and at most 1"),
        (["--sample", "some"], "'some' is not a share: write it as 1% or 0.01"),
        (["--limit", "5", "--watch"], "--limit and --watch cannot be combined"),
    ],
)
@for_each("command", ["stream", "transform"])
def test_invalid_subsets_are_usage_errors(command, args, why):
    done = score(command, *args)
    assert done.code == 2
    assert why in " ".join(done.err.split())
    assert not OUT.exists()


def test_sample_of_sequences_is_a_usage_error():
    done = score("stream", "--sample", "5%", "--sequence", "0")
    assert done.code == 2
    assert "sample leaves out records of a sequence" in " ".join(done.err.split())


@for_each("command", ["stream", "transform"])
def test_failed_records_of_a_subset_are_retried(command):
    output = Path(f"out-{command}")
    Path("picky.py").write_text(
        DOUBLE.replace(
            "return x[:, 0] * 2",
            "from headrace import RowError\n"
            "        from pathlib import Path\n"
            "        bad = [i for i, v in enumerate(x[:, 0]) if v % 7 == 0 and not Path('fixed').exists()]\n"
            "        if bad: raise RowError(dict.fromkeys(bad, 'seven'))\n"
            "        return x[:, 0] * 2",
        )
    )
    args = ["--model", "picky.py", "--sample", "20%", "--limit", "300", "--json"]
    places = ["in/", "--output", output] if command == "stream" else ["in/", output]
    Path("fixed").unlink(missing_ok=True)
    done = headrace(command, *places, *args)
    assert (done.code, done.report["records_in"]) == (3, 300)
    assert done.report["rows_failed"] > 20
    Path("fixed").touch()
    retried = headrace(command, "retry-failed", output, "--json")
    assert (retried.code, retried.report["records_in"], retried.report["rows_failed"]) == (0, 300, 0)
    assert retried.report["limit"] == 300
    whole = Path(f"whole-{command}")
    places = ["in/", "--output", whole] if command == "stream" else ["in/", whole]
    assert headrace(command, *places, *args).code == 0
    assert values(command, output) == values(command, whole)


def test_run_leaves_no_other_files():
    assert score("stream", "--limit", "10").code == 0
    assert leftovers(OUT) == []
    assert set(contents(OUT)) == {"part-00000.csv"}
