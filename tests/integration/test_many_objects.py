"""The memory of a run does not grow with the number of its objects."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from headrace.runs import plan_pages, run, run_plan, tasks


run.PAGE_OBJECTS = run_plan.PAGE_OBJECTS = tasks.FLOW_OBJECTS_MIN = 500
plan_pages.LOADED_OBJECTS_MAX = 1500
import headrace
from headrace.runs.work import peak_memory_mb

class Sum(headrace.Model):
    def predict(self, x):
        return {"y": x.sum(axis=1)}

kind, source, out = sys.argv[1:]
if kind == "transform":
    report = headrace.transform_sync(source, out, model=Sum)
else:
    report = headrace.run_sync(source, output=out, model=Sum)
print(json.dumps([report.rows_out, peak_memory_mb()]))
"""


@pytest.mark.parametrize("kind", ["transform", "stream"])
def test_memory_does_not_grow_with_the_objects(tmp_path, kind):
    peaks_mb = []
    for count in (1_500, 12_000):
        source = tmp_path / f"{count}"
        for number in range(count):
            path = source / f"{number // 500:03d}" / f"{number:05d}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"1,2\n3,4\n")
        command = [sys.executable, "-c", SCRIPT, kind, f"{source}/", f"{tmp_path}/out-{count}/"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows, peak_mb = json.loads(done.stdout.splitlines()[-1])
        assert rows == 2 * count
        peaks_mb.append(peak_mb)
    few, many = peaks_mb
    assert many - few < 10  # MB; all objects at once would need 50
