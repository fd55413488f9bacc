"""Does learning find a known invariance? Turned digits, odd against even (LIM 5.1, figure 3).

    python -m orbitwise.experiments.recovery --angle 45 --seed 0 --out results/recovery_45_0.json

Images are turned uniformly within ± the given angle; a Pólya-Gamma classifier learns the bound of a rotation
from its start near
the identity, beside a plain one.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.experiments.records import write_record
from orbitwise.transforms.images import AffineWarp


def turned_digits(angle: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The 8×8 digits in random order, each turned within ± `angle` degrees, and whether it is odd."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    alpha = torch.zeros(len(images), 1, 6, dtype=torch.float64)
    alpha[:, 0, 0] = torch.from_numpy(np.radians(rng.uniform(-angle, angle, len(images))))
    turned = AffineWarp((8, 8))(torch.from_numpy(np.asarray(images)[order]), alpha)[:, 0]
    return turned.numpy(), np.asarray(labels)[order] % 2


def run(angle: float, seed: int, num_train: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Fit with a learned rotation and without, and report both."""
    x, y = turned_digits(angle, seed)
    record: dict[str, Any] = {"angle": angle, "seed": seed, "num_train": num_train, "models": {}}
    for invariance in (None, "rotation"):
        start = time.perf_counter()
        model = InvariantGPClassifier(
            invariance=invariance,
            likelihood="stick_breaking",
            image_shape=(8, 8),
            random_state=seed,
            **settings,
        ).fit(x[:num_train], y[:num_train])
        learned = None if model.orbit_ is None else math.degrees(model.orbit_.learned()["angle"][1])
        record["models"][invariance or "none"] = {
            "bound": model.log_evidence_,
            "test_error": float(np.mean(model.predict(x[num_train:]) != y[num_train:])),
            "learned_degrees": learned,
            "seconds": time.perf_counter() - start,
        }
    return record


def main() -> None:
    """Read the command line, run, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--angle", type=float, default=45)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-train", type=int, default=1000)
    parser.add_argument("--inference", default="collapsed")
    parser.add_argument("--num-inducing", type=int, default=400)
    parser.add_argument("--max-iterations", type=int, default=30)
    parser.add_argument("--num-steps", type=int)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    names = ("inference", "num_inducing", "max_iterations", "num_steps")
    settings = {name: getattr(arguments, name) for name in names}
    record = run(arguments.angle, arguments.seed, arguments.num_train, settings)
    print(json.dumps(record))
    if arguments.out is not None:
        write_record(record, arguments.out)


if __name__ == "__main__":
    main()
