import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from orbitwise.experiments import mnist


@pytest.fixture
def small_mnist(monkeypatch):
    rng = np.random.default_rng(0)
    means = rng.uniform(0, 255, size=(10, 28, 28)) * (rng.uniform(size=(10, 28, 28)) > 0.7)
    labels = np.arange(60_040) % 10
    images = np.zeros((60_040, 28, 28), dtype=np.uint8)
    used = np.r_[0:80, 60_000:60_040]
    images[used] = np.clip(means[labels[used]] + rng.normal(0, 30, size=(len(used), 28, 28)), 0, 255)
    data = SimpleNamespace(
        x_train=images[:60_000], y_train=labels[:60_000], x_test=images[60_000:], y_test=labels[60_000:]
    )
    monkeypatch.setattr(mnist.datasets, "load", lambda name: data)


def test_a_small_run_writes_its_record(small_mnist, monkeypatch, tmp_path):
    out = tmp_path / "record.json"
    command = (
        "mnist --orbit rotation --inducing 20 40 --steps 6 4 --report 40 --draws 4 --polish-draws 8 "
        "--batch 20 "
        f"--num-train 80 --device cpu --out {out}"
    )
    monkeypatch.setattr(sys, "argv", command.split())
    mnist.main()
    record = json.loads(out.read_text())
    assert [stage["num_inducing"] for stage in record["stages"]] == [20, 40]
    assert {row["noise_by"] for row in record["curve"]} == {"evidence", "leave-one-out"}
    assert all(row["test_error"] < 0.2 for row in record["curve"])
    assert record["command"]["seed"] == 0


def test_rotated_images_are_turned_by_the_stated_angles(small_mnist):
    plain, *_ = mnist.load("plain", "cpu", 3)
    turned, *_ = mnist.load("rotated", "cpu", 3)
    angles = np.random.default_rng(101).uniform(0, 2 * np.pi, 60_040)[:3]
    for image, result, angle in zip(plain, turned, angles, strict=True):
        alpha = torch.tensor([[[angle, 0, 0, 0, 0, 0]]], dtype=torch.float32)
        torch.testing.assert_close(mnist.AffineWarp((28, 28))(image[None], alpha)[0, 0], result)
