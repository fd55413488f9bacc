"""The experiment on made-up digits: evidence, errors and orbits as defined, and a record that goes on."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orbitwise import datasets
from orbitwise.experiments import wide_networks
from orbitwise.experiments.wide_networks import (
    CONVOLUTIONS,
    MAIN,
    POOLED,
    Bench,
    Cell,
    Data,
    Learned,
    Rows,
    log_evidence,
    main,
    measure,
)
from orbitwise.functionals import Evaluation
from orbitwise.process import Process

# Few iterations, or labels that tell nothing, are enough for what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:InvariantGPClassifier predicts class:UserWarning"),
]

OPTIONS = ["--sizes", "20", "24", "--test", "12", "--image-size", "6", "--pooled-size", "3", "--nodes", "2",
           "--iterations", "1", "--orbit-rows", "12", "--convolution-rows", "10",
           "--convolution-orbit-rows", "6", "--pooled-rows", "8", "--tolerances", "0.1", "1.0"]  # fmt: skip


class Digits:
    """Ten bright rows, one a class."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.y_train, self.y_test = np.arange(300) % 10, np.arange(40) % 10
        self.x_train, self.x_test = (
            (40 * generator.uniform(size=(len(y), 28, 28))).astype(np.uint8)
            for y in (self.y_train, self.y_test)
        )
        for images, labels in ((self.x_train, self.y_train), (self.x_test, self.y_test)):
            for image, label in zip(images, labels, strict=True):
                image[2 * label + 4 : 2 * label + 8] += 180


@pytest.fixture(autouse=True)
def digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load", lambda name: Digits())


def test_evidence_is_that_of_a_normal_density():
    root = torch.randn(6, 6, dtype=torch.float64)
    gram, targets = root @ root.T, torch.randn(6, 3, dtype=torch.float64)
    matrix = gram + 0.3 * torch.eye(6, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(torch.zeros(6, dtype=torch.float64), matrix)
    expected = sum(normal.log_prob(column).item() for column in targets.T)
    assert log_evidence(gram, targets, 0.3) == pytest.approx(expected)


def test_images_are_averaged_down():
    data = Data.of(14, 12, 0, "cpu")
    assert data.x.shape == (300, 196)
    assert data.x_test.shape == (12, 196)
    assert torch.equal(data.y_test, torch.arange(12) % 10)
    first = Digits().x_test[0].reshape(14, 2, 14, 2).mean((1, 3)) / 255
    assert np.allclose(data.x_test[0].numpy(), first.ravel())
    assert data.x.min() >= 0
    assert data.x.max() <= 1


def test_a_measured_cell_is_kernel_regression():
    data = Data.of(6, 40, 0, "cpu")
    cell = Cell(MAIN[0], 30, "none", 6)
    kernel = cell.model.kernel(6)
    rows = Rows(Process(None, kernel), Evaluation(), data, 30)
    found, gram = measure(rows, cell, Learned(kernel, None, 0.1, 30, 0.0), 40), rows.gram()
    with torch.no_grad():
        slow = kernel(data.x[:30]).to_dense()
        targets = torch.nn.functional.one_hot(data.y[:30], 10).double() - 0.1
        weights = torch.linalg.solve(slow + found["noise"] * torch.eye(30, dtype=torch.float64), targets)
        choice = (kernel(data.x_test, data.x[:30]).to_dense() @ weights).argmax(1)
    assert torch.allclose(gram, slow, rtol=1e-5)
    assert found["test_error"] == pytest.approx((choice != data.y_test).double().mean().item())
    assert found["log_evidence"] == pytest.approx(log_evidence(slow, targets, found["noise"]), rel=1e-4)
    for factor in (0.5, 2.0):
        assert log_evidence(gram, targets, factor * found["noise"]) < found["log_evidence"]


def run(monkeypatch: pytest.MonkeyPatch, file: Path, *more: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["wide_networks", *OPTIONS, "--out", str(file), *more])
    main()
    return json.loads(file.read_text())


def test_the_record_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    chosen = [Cell(MAIN[0], 20, orbit, 6) for orbit in ("none", "learned")]
    chosen += [Cell(CONVOLUTIONS[0], 20, "learned", 6)]
    chosen += [Cell(model, 20, "none", 3) for model in (POOLED, MAIN[0], CONVOLUTIONS[0])]
    chosen += [Cell(MAIN[0], 24, "learned", 6)]
    monkeypatch.setattr(wide_networks, "cells", lambda *sizes: chosen)
    file = tmp_path / "record.json"
    record = run(monkeypatch, file)
    assert list(record["cells"]) == [cell.name for cell in chosen]
    assert file.with_suffix(".png").is_file()
    values = list(record["cells"].values())
    assert all(0 <= cell["test_error"] <= 1 and math.isfinite(cell["log_evidence"]) for cell in values)
    small = [cell.name for cell in chosen if (cell.rows, cell.size) == (20, 6)]
    assert list(record["sparsity"]) == small
    dense, convolutional = (cell["learned"] for cell in values[1:3])
    assert dense["rows"] == 12
    assert convolutional["rows"] == 6
    # another run takes what was learned from the record: the larger cell comes out the same
    larger = record["cells"].pop(chosen[-1].name)
    file.write_text(json.dumps(record))
    monkeypatch.setattr(wide_networks, "learn", None)
    second = run(monkeypatch, file)["cells"][chosen[-1].name]
    assert {**second, "seconds": 0} == {**larger, "seconds": 0}
    record["cells"][chosen[-1].name] = larger
    # a cell that is taken out is run again, the others are not
    del record["cells"][chosen[0].name]
    record["cells"][chosen[1].name]["test_error"] = 0.123
    file.write_text(json.dumps(record))
    ran = []
    monkeypatch.setattr(Bench, "run", lambda bench, cell: ran.append(cell) or {**values[0]})
    monkeypatch.setattr(Bench, "sparsity", pytest.fail)
    again = run(monkeypatch, file)
    assert ran == [chosen[0]]
    assert again["cells"][chosen[1].name]["test_error"] == 0.123


def test_no_cell_is_begun_after_the_time_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    file = tmp_path / "record.json"
    monkeypatch.setattr(wide_networks, "cells", lambda *sizes: [Cell(MAIN[0], 20, "none", 6)])
    before = run(monkeypatch, file)
    monkeypatch.setattr(wide_networks, "cells", lambda *sizes: [Cell(MAIN[1], 20, "none", 6)])
    assert run(monkeypatch, file, "--time-limit", "0") == before
    assert run(monkeypatch, file, "--only", "sparsity") == before
