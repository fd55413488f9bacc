"""The data and the plan of the demonstration; the whole of it is slow."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from orbitwise.cli.data import NUM_DEMO, demo_data
from orbitwise.cli.folders import Folder
from orbitwise.cli.learning import Run, demo_plan
from orbitwise.storage import load


def test_training_and_test_images_share_no_row():
    data, test = demo_data()
    assert len(data) == NUM_DEMO
    assert len(data) + len(test) == 1797
    assert not set(data.labels) & set(test.labels)
    assert data.X.min() == 0
    assert data.X.max() == 1
    assert len(np.unique(data.targets)) == 10


def test_it_compares_four_invariances():
    assert list(demo_plan().names) == ["none", "rotation", "affine", "affine+deformation"]


def test_the_demonstration_ends_with_a_table_and_a_report(folder):
    data, test = demo_data()
    plan = demo_plan(options={"num_nodes": 4, "max_iterations": 1})
    console = Console(file=io.StringIO(), width=110)
    outcome = Run(data.take(30, 0), test.take(40, 0), plan, Folder(folder / "demo"), console, {}).learn()
    text = console.file.getvalue()  # pyright: ignore
    assert len(outcome.comparison.candidates) == 4
    assert "Evidence of the training data" in text
    assert "report:" in text
    assert (folder / "demo" / "report.html").is_file()
    assert (folder / "demo" / "picture.png").is_file()


@pytest.mark.slow
def test_the_whole_of_it_learns_ranges_with_error_bars(orbitwise, folder):
    ran = orbitwise("demo", "--out", "demo")
    assert ran.status == 0, ran.error
    best = json.loads((folder / "demo" / "comparison.json").read_text())["best"]
    assert best in ("affine", "affine+deformation")
    model = load(folder / "demo" / "model.orbitwise")
    assert model.orbit_intervals_.keys() == model.orbit_.learned().keys()
