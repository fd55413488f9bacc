"""MNIST and rotated MNIST with learned invariances, on one GPU (LIM 5.2 and 5.3).

    python -m orbitwise.experiments.mnist --data rotated --orbit rotation --out results/rotated_mnist.json

The number of inducing points grows during training, hyperparameters are relearned as it grows, and the last
numbers are polished only. Bounds are those of the whole orbit, estimated without bias. Nothing is chosen with
test images: they are used to report the curve.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orbitwise import datasets
from orbitwise.experiments.records import Record, command_line
from orbitwise.functionals.averages import OrbitAverage
from orbitwise.functionals.functional import Evaluation, Functional
from orbitwise.inference.calibration import (
    best_scale,
    cross_entropy,
    expected_calibration_error,
    held_out_loss,
    least_noise,
)
from orbitwise.inference.defaults import default_kernel
from orbitwise.inference.sparse.held_rows import hold_rows
from orbitwise.inference.sparse.inducing import random_orbit_points
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.stochastic.polish import unbiased_bound
from orbitwise.inference.stochastic.trainer import Rates, StochasticTrainer
from orbitwise.likelihoods.dirichlet import one_hot
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.orbits.images import ImageOrbit
from orbitwise.process.process import Process
from orbitwise.transforms.images import AffineWarp

SHAPE = (28, 28)
ORBITS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "rotation": {"affine": {"angle": 0.3}},
    "rotation_fixed": {"affine": {"angle": math.pi}, "learnable": ()},
    "affine": {},
    "affine+deformation": {"amplitude": 0.5, "smoothness": 4.0},
}


def load(kind: str, device: str, num_train: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows between 0 and 1, and labels; "rotated" turns image i by draw i of default_rng(101), 0 to 2π.

    "rotated_12000" is the set of 12,000 turned images for training and 50,000 for testing.
    """
    if kind == "rotated_12000":
        turned = datasets.load("mnist_rot_generated")
        parts = [torch.from_numpy(each.reshape(-1, 784)) for each in (turned.x_train, turned.x_test)]
        x, x_test = (part.to(device).float() / 255 for part in parts)
        labels = [torch.from_numpy(each.astype(np.int64)) for each in (turned.y_train, turned.y_test)]
        y, y_test = (each.to(device) for each in labels)
        return x[:num_train], y[:num_train], x_test, y_test
    data = datasets.load("mnist")
    images = (
        torch.from_numpy(np.concatenate([data.x_train, data.x_test]).reshape(-1, 784)).to(device).float()
        / 255
    )
    labels = torch.from_numpy(np.concatenate([data.y_train, data.y_test]).astype(np.int64)).to(device)
    if kind == "rotated":
        angles = torch.from_numpy(np.random.default_rng(101).uniform(0, 2 * np.pi, len(images))).to(images)
        alpha = torch.zeros(len(images), 1, 6, device=device)
        alpha[:, 0, 0] = angles
        warp = AffineWarp(SHAPE)
        images = torch.cat(
            [warp(i, a)[:, 0] for i, a in zip(images.split(5000), alpha.split(5000), strict=True)]
        )
    return images[:num_train], labels[:num_train], images[60_000:], labels[60_000:]


def predict_means(
    posterior: SparsePosterior, functional: Functional, x: Tensor, generator: torch.Generator
) -> Tensor:
    """Posterior means in batches."""
    with torch.no_grad():
        return torch.cat([posterior.moments(functional, part, generator).mean for part in x.split(500)])


def evaluate(
    process: Process,
    functional: Functional,
    inducing: Tensor,
    noise: float,
    data: tuple[Tensor, Tensor, Tensor, Tensor],
    generator: torch.Generator,
    with_leave_one_out: bool,
) -> list[dict[str, Any]]:
    """Polish and report: a row for the noise of the evidence, and one for that of leave-one-out."""
    x, y, x_test, y_test = data
    targets = one_hot(y, 10) - 0.1
    held = hold_rows(process, functional, inducing, x, targets, generator)
    rows = []
    noises = {"evidence": least_noise(lambda value: -float(held.bound(value)), 2 * noise)}
    if with_leave_one_out:

        def loss(value: float) -> float:
            return held_out_loss(held.leave_one_out(value).mean, y)

        noises["leave-one-out"] = least_noise(loss, noises["evidence"])
    for choice, value in noises.items():
        held_out = held.leave_one_out(value).mean
        scale = best_scale(held_out, y)
        posterior = SparsePosterior(process, inducing, held.optimum(value), held.projected.lower)
        bound = unbiased_bound(
            posterior,
            functional,
            Gaussian(value).to(x.device),
            x,
            targets,
            held.projected.residual,
            None,
            generator,
            num_passes=2,
        )
        means = predict_means(posterior, functional, x_test, generator)
        rows.append(
            {
                "noise_by": choice,
                "num_inducing": len(inducing),
                "noise": value,
                "bound": bound.mean,
                "bound_error": bound.standard_error,
                "leave_one_out_error": float((held_out.argmax(1) != y).double().mean()),
                "leave_one_out_log_loss": cross_entropy(held_out, y, scale),
                "test_error": float((means.argmax(1) != y_test).double().mean()),
                "test_log_loss": cross_entropy(means, y_test, scale),
                "test_calibration_error": expected_calibration_error(
                    torch.softmax(scale * means, -1), y_test
                ),
            }
        )
    return rows


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one model and report its curve."""
    device = arguments.device
    data = load(arguments.data, device, arguments.num_train)
    x, y, *_ = data
    generator = torch.Generator(device).manual_seed(arguments.seed)
    settings = ORBITS[arguments.orbit]
    orbit = (
        None
        if settings is None
        else ImageOrbit(SHAPE, num_samples=arguments.draws, draws="sobol", **settings).to(device)
    )
    functional = Evaluation() if orbit is None else OrbitAverage(orbit)
    kernel: Any = default_kernel(x[:2000].double(), separate_lengthscales=False)
    process, likelihood = Process(None, kernel), Gaussian(0.05).to(device)
    start = time.perf_counter()
    record: dict[str, Any] = {"orbit": arguments.orbit, "data": arguments.data, "stages": [], "curve": []}
    trainer: StochasticTrainer | None = None
    for size, steps in zip(arguments.inducing, arguments.steps, strict=True):
        inducing = random_orbit_points(functional, x, size, generator)
        if trainer is None:
            rates = Rates(kernel=arguments.rate, orbit=arguments.orbit_rate)
            trainer = StochasticTrainer(
                process,
                functional,
                likelihood,
                x,
                one_hot(y, 10) - 0.1,
                inducing,
                generator,
                arguments.batch,
                rates,
            )
        else:
            trainer.replace_inducing(inducing)
        if steps:
            trainer.run(steps, warm_up=min(50, steps // 4))
        seconds = time.perf_counter() - start
        stage = {
            "num_inducing": size,
            "seconds": seconds,
            "bound": trainer.history.smoothed[-1],
            "lengthscale": kernel.base_kernel.lengthscale.item(),
            "outputscale": kernel.outputscale.item(),
            "noise": likelihood.noise.item(),
            "back_offs": trainer.history.back_offs,
            "orbit": {} if orbit is None else orbit.learned(),
        }
        record["stages"].append(stage)
        print(json.dumps(stage), flush=True)
        if size in arguments.report:
            if orbit is not None:
                orbit.num_samples = arguments.polish_draws
            rows = evaluate(
                process,
                functional,
                inducing,
                likelihood.noise.item(),
                data,
                generator,
                size >= arguments.loo_from,
            )
            torch.cuda.empty_cache()
            for row in rows:
                row["seconds"] = time.perf_counter() - start
                print(json.dumps(row), flush=True)
            record["curve"] += rows
            if orbit is not None:
                orbit.num_samples = arguments.draws
    record["total_seconds"] = time.perf_counter() - start
    assert trainer is not None
    record["history"] = trainer.history.smoothed[:: max(1, len(trainer.history.smoothed) // 200)]
    return record


def main() -> None:
    """Read the command line, run, and write the record."""
    parser = command_line(__doc__, is_required=False)
    parser.add_argument("--data", choices=["plain", "rotated", "rotated_12000"], default="plain")
    parser.add_argument("--orbit", choices=sorted(ORBITS), default="affine+deformation")
    parser.add_argument("--inducing", type=int, nargs="+", default=[1000, 2000, 4000])
    parser.add_argument("--steps", type=int, nargs="+", default=[600, 400, 300])
    parser.add_argument("--report", type=int, nargs="*", default=[4000])
    parser.add_argument("--loo-from", type=int, default=0)
    parser.add_argument("--draws", type=int, default=32)
    parser.add_argument("--polish-draws", type=int, default=96)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=0.03)
    parser.add_argument("--orbit-rate", type=float, default=0.05)
    parser.add_argument("--num-train", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    command = vars(arguments) | {"out": str(arguments.out)}
    Record(arguments.out, run(arguments)).write(command=command, torch=torch.__version__)


if __name__ == "__main__":
    main()
