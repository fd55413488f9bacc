"""The example that serves a BoTorch model, run small.

It runs in a process of its own, because importing BoTorch changes settings of GPyTorch.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(out: Path, *options: str) -> tuple[dict, str]:
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "symmetric_optimisation.py"), "--out", str(out), *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads((out / "symmetric_optimisation.json").read_text(encoding="utf-8")), finished.stdout


def test_a_botorch_model_takes_the_kernel(tmp_path: Path):
    numbers, printed = run(tmp_path, "--seeds", "1", "--start", "5", "--steps", "1")
    runs = numbers["best_so_far"]
    assert set(runs) == {"plain", "invariant"}
    for name in runs:
        assert len(runs[name][0]) == 6
        assert runs[name][0] == sorted(runs[name][0])
        assert runs[name][0][-1] <= numbers["best"]
    assert runs["plain"][0][:5] == runs["invariant"][0][:5]
    assert "evaluations" in printed
    assert (tmp_path / "symmetric_optimisation.png").stat().st_size > 10_000


@pytest.mark.slow
def test_knowing_the_symmetry_saves_evaluations(tmp_path: Path):
    numbers, _ = run(tmp_path)
    final = {name: sum(run[-1] for run in runs) / len(runs) for name, runs in numbers["best_so_far"].items()}
    assert final["invariant"] > final["plain"]
