"""The data and the plan of the demonstration; the whole of it is slow."""

import json

import numpy as np
import pytest
import torch

from orbitwise.cli.demo import NUM_TRAINING, demo_data, demo_plan, one_thread


def test_training_and_test_images_share_no_row():
    data, test = demo_data()
    assert len(data) == NUM_TRAINING
    assert len(data) + len(test) == 1797
    assert not set(data.labels) & set(test.labels)
    assert data.X.min() == 0
    assert data.X.max() == 1
    assert len(np.unique(data.targets)) == 10


def test_it_compares_four_invariances():
    assert list(demo_plan().names) == ["none", "rotation", "affine", "affine+deformation"]


def test_threads_come_back():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_the_demonstration_ends_with_a_table_and_a_report(orbitwise, folder):
    ran = orbitwise("demo", "--out", "demo")
    assert ran.status == 0, ran.error
    assert f"report: {'demo'}" in ran.out
    best = json.loads((folder / "demo" / "comparison.json").read_text())["best"]
    assert best == "affine+deformation"
