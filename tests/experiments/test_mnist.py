import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from orbitwise.experiments import mnist
from orbitwise.transforms.images import AffineWarp

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # fits of no time


@pytest.fixture
def small_mnist(monkeypatch):
    rng = np.random.default_rng(0)
    means = rng.uniform(0, 255, size=(10, 28, 28)) * (rng.uniform(size=(10, 28, 28)) > 0.7)
    labels = np.arange(70) % 10
    images = np.clip(means[labels] + rng.normal(0, 30, size=(70, 28, 28)), 0, 255).astype(np.uint8)
    data = SimpleNamespace(x_train=images[:50], y_train=labels[:50], x_test=images[50:], y_test=labels[50:])
    monkeypatch.setattr(mnist.datasets, "load", lambda name: data)
    run = mnist.run
    few = {"inference": "collapsed", "num_inducing": 20, "num_nodes": 2, "max_iterations": 1}
    monkeypatch.setattr(mnist, "run", lambda *parts: run(*parts[:-1], parts[-1] | few | {"verbose": False}))


def test_runs_are_gathered_in_one_record(small_mnist, monkeypatch, tmp_path):
    out = tmp_path / "record.json"
    for seeds in ("0", "0 1"):
        command = f"mnist --invariance rotation --num-train 40 --seeds {seeds} --out {out}"
        monkeypatch.setattr(sys, "argv", command.split())
        mnist.main()
    record = json.loads(out.read_text())
    assert list(record["seeds"]) == ["0", "1"]
    for each in record["seeds"].values():
        assert each["test_error"] < 0.2
        assert each["num_inducing"] == 20
        assert list(each["orbit"]) == ["angle"]
    assert record["command"]["invariance"] == "rotation"


def test_rotated_images_are_turned_by_the_stated_angles(small_mnist):
    plain, *_ = mnist.load("plain", 3)
    turned, *_ = mnist.load("rotated", 3)
    angles = np.random.default_rng(101).uniform(0, 2 * np.pi, 70)[:3]
    for image, result, angle in zip(plain, turned, angles, strict=True):
        alpha = torch.tensor([[[angle, 0, 0, 0, 0, 0]]], dtype=torch.float32)
        rows = torch.from_numpy(image.reshape(1, -1)).float()
        expected = AffineWarp((28, 28))(rows, alpha)[0, 0].reshape(28, 28).numpy()
        np.testing.assert_allclose(result, expected, atol=1e-4)
