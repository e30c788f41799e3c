"""The container file: its stages, context, extras and user. `make image` builds it; no test does."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import headrace
from headrace.app.server_options import JobsOptions, ServerOptions

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "container" / "Dockerfile"
IGNORE = ROOT / ".dockerignore"
HADOLINT = Path(sys.executable).parent / "hadolint"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def instructions(text):
    """Return the instructions with their arguments, each in one line, without comments."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines()]


def stages(text):
    """Return the instructions of each stage by its name, after those of the stage that it extends."""
    found = {}
    for name, arguments in instructions(text):
        if name == "FROM":
            base, _, stage = arguments.split()
            found[stage] = current = list(found.get(base, ()))
        elif found:
            current.append((name, arguments))
    return found


STAGES = stages(DOCKERFILE.read_text())


def arguments(stage, name):
    return [text for instruction, text in STAGES[stage] if instruction == name]


def extras(target):
    (default,) = (text for text in arguments(f"{target}-dependencies", "ARG") if text.startswith("EXTRAS="))
    return default.removeprefix("EXTRAS=").split(",")


def packages(extra):
    """Return the names of the packages of an extra, and of those that it includes."""
    names = set()
    for requirement in map(Requirement, EXTRAS[extra]):
        if requirement.name == "headrace":
            names |= set().union(*map(packages, requirement.extras))
        else:
            names.add(requirement.name)
    return names


def make_image(*variables):
    # A make that runs the tests would have its child print its folder, too.
    command = ["make", "--no-print-directory", "--dry-run", "image", *variables]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.replace("\\\n", "").split(), done.stderr


def test_last_stage_is_the_cpu_image():
    """A build without --target builds the last stage."""
    assert list(STAGES)[-1] == "cpu"
    assert "cuda" in STAGES


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_image_runs_headrace_as_a_numeric_user(target):
    """Kubernetes verifies runAsNonRoot by a number. tini reaps the orphans of model processes."""
    user, _, group = arguments(target, "USER")[-1].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    created = " ".join(arguments(target, "RUN"))
    assert f"useradd --no-log-init --uid {user} --gid {group}" in created
    assert json.loads(arguments(target, "ENTRYPOINT")[-1]) == ["tini", "--", "headrace"]
    assert json.loads(arguments(target, "CMD")[-1]) == ["--help"]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_image_exposes_the_default_ports(target):
    defaults = [(field.name, field.default) for cls in (ServerOptions, JobsOptions) for field in fields(cls)]
    ports = {default for name, default in defaults if name.endswith("port")}
    assert {int(port) for port in arguments(target, "EXPOSE")[-1].split()} == ports


def test_targets_share_the_package_and_differ_in_dependencies():
    """A change of the source leaves the layer of the dependencies as it is."""
    for target in ("cpu", "cuda"):
        copies = arguments(target, "COPY")
        assert copies == [
            f"--from={target}-dependencies /opt/headrace /opt/headrace",
            "--from=package /package /",
        ]
        copied = " ".join(arguments(f"{target}-dependencies", "COPY"))
        assert "src" not in copied
    assert "src/headrace src/headrace" in arguments("package", "COPY")


def test_extras_of_the_images_exist():
    """The images for GPUs have those of the other, and frameworks of models."""
    assert set(extras("cpu")) <= set(EXTRAS)
    assert set(extras("cuda")) == set(extras("cpu")) - {"onnx"} | {"torch", "huggingface"}


def test_cuda_image_has_one_onnxruntime():
    """onnxruntime and onnxruntime-gpu have the same files. The pin of the one is for both."""
    assert not [extra for extra in extras("cuda") if "onnxruntime" in packages(extra)]
    assert "onnxruntime" in packages("onnx")
    (run,) = arguments("cuda-dependencies", "RUN")[-1:]
    command = re.search(r"sed .*? constraints\.txt", run).group()
    printed = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    pin = re.search(r"^onnxruntime==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group(1)
    assert printed == f"onnxruntime-gpu[cuda,cudnn]=={pin}\n"


def test_image_adds_one_debian_package():
    installed = re.findall(r"apt-get install ([^&]+)", " ".join(arguments("runtime", "RUN")))
    assert [word for text in installed for word in text.split() if not word.startswith("--")] == ["tini"]
    assert "apt-get" not in " ".join(arguments("package", "RUN") + arguments("cuda-dependencies", "RUN"))


def test_context_has_the_files_that_are_copied_and_no_others():
    lines = IGNORE.read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    permitted = [pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")]
    copied = {
        source
        for stage in STAGES
        for text in arguments(stage, "COPY")
        if not text.startswith("--from=")
        for source in text.split()[:-1]
    }
    assert patterns[0] == "*"
    assert sorted(copied) == sorted(permitted)
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert {"**/__pycache__", "**/*.py[cod]"} == set(patterns[len(permitted) + 1 :])


@pytest.mark.parametrize(("variables", "suffix"), [((), ""), (("VARIANT=cuda",), "-cuda")])
def test_make_image_builds_a_target(variables, suffix):
    status, words, errors = make_image("BUILDER=podman", "ARGS=--no-cache", *variables)
    assert status == 0, errors
    target = suffix.removeprefix("-") or "cpu"
    assert target in STAGES
    file = DOCKERFILE.relative_to(ROOT)
    image = f"headrace{suffix}:{headrace.__version__}"
    expected = f"podman build --file {file} --target {target} --tag {image} --no-cache ."
    assert words == expected.split()


def test_make_image_without_a_builder_names_the_programs():
    status, _, errors = make_image("BUILDER=")
    assert status != 0
    assert "install docker, podman or buildah" in errors


def lint(file):
    return subprocess.run([HADOLINT, "--no-color", file], capture_output=True, text=True, check=False)


@pytest.mark.slow  # hadolint is in the dev extra
def test_linter_accepts_the_container_file():
    done = lint(DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("--no-install-recommends ", "", "DL3015"),
        ("# hadolint ignore=DL3008\n", "", "DL3008"),
        ("pip install --no-cache-dir", "pip install", "DL3042"),
        ("WORKDIR /build", "WORKDIR build", "DL3000"),
        ("COPY --from=package", "COPY --from=parcel", "DL3022"),
    ],
)
def test_linter_refuses_a_broken_container_file(tmp_path, old, new, rule):
    text = DOCKERFILE.read_text()
    assert old in text
    broken = tmp_path / "Dockerfile"
    shutil.copy(DOCKERFILE, broken)
    broken.write_text(text.replace(old, new))
    done = lint(broken)
    assert done.returncode != 0
    assert rule in done.stdout
