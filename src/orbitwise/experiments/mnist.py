"""MNIST and rotated MNIST by the classifier and its defaults (LIM 5.2 and 5.3).

    python -m orbitwise.experiments.mnist --data rotated --seeds 0 1 2 --out results/mnist_rotated.json

Runs are `InvariantGPClassifier(invariance=…).fit(images, labels)`, and complete a record that exists.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch

from orbitwise import datasets
from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.experiments.records import Record, command_line, versions_and_machine
from orbitwise.transforms.images import AffineWarp


def load(kind: str, num_train: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images and labels, for training and testing; "rotated" turns image i by draw i of default_rng(101)."""
    data = datasets.load("mnist_rot_generated" if kind == "rotated_12000" else "mnist")
    x, x_test = data.x_train, data.x_test
    if kind == "rotated":
        angles = np.random.default_rng(101).uniform(0, 2 * np.pi, len(x) + len(x_test))
        x, x_test = turned(x, angles[: len(x)]), turned(x_test, angles[len(x) :])
    return x[:num_train], data.y_train[:num_train], x_test, data.y_test


def turned(images: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Images [n, height, width], each turned by its angle in radians."""
    rows, alpha = torch.from_numpy(images).flatten(1).float(), torch.zeros(len(images), 1, 6)
    alpha[:, 0, 0] = torch.from_numpy(angles)
    return AffineWarp(images.shape[1:])(rows, alpha).reshape(images.shape).numpy()


def run(kind: str, num_train: int, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One fit, and what it predicts."""
    x, y, x_test, y_test = load(kind, num_train)
    start = time.perf_counter()
    model = InvariantGPClassifier(random_state=seed, **settings).fit(x, y)
    seconds = time.perf_counter() - start
    probabilities, labels = torch.from_numpy(model.predict_proba(x_test)), torch.from_numpy(y_test).long()
    return {
        "seconds": seconds,
        "test_error": float((probabilities.argmax(1) != labels).double().mean()),
        "test_log_loss": float(torch.nn.functional.nll_loss(probabilities.log(), labels)),
        "num_inducing": model.num_inducing_,
        "inducing_stopped_by": model.inducing_stopped_by_,
        "leave_one_out_log_losses": {each["num_inducing"]: each["loss"] for each in model.climb_},
        "log_evidence": model.log_evidence_,
        "noise": model.noise_,
        "orbit": None if model.orbit_ is None else model.orbit_.learned(),
        **versions_and_machine(),
    }


def main() -> None:
    """Run the seeds that the record lacks."""
    parser = command_line(__doc__)
    parser.add_argument("--data", choices=("plain", "rotated", "rotated_12000"), default="plain")
    parser.add_argument("--invariance", default="affine+deformation")
    parser.add_argument("--num-train", type=int, default=60_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--max-seconds", type=float)
    options = parser.parse_args()
    asked = {name: value for name, value in vars(options).items() if name != "out" and value is not None}
    record = Record(options.out, {"command": asked, "seeds": {}})
    settings = {"invariance": options.invariance, "max_seconds": options.max_seconds, "verbose": True}
    for seed in options.seeds:
        made = partial(run, options.data, options.num_train, seed, settings)
        record.fill(record.values["seeds"], str(seed), made)


if __name__ == "__main__":
    main()
