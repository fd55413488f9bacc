"""MNIST and rotated MNIST with learned invariances, on one GPU (LIM 5.2 and 5.3).

    python -m orbitwise.experiments.mnist --data rotated --orbit rotation --out results/rotated_mnist.json

The number of inducing points grows during training, hyperparameters are relearned as it grows, and the last
numbers are polished only. Bounds are those of the whole orbit, estimated without bias. Nothing is chosen with
test images: they are used to report the curve.

The record has "stages", one for each number of inducing points: the bound and the learned hyperparameters;
and "curve", one or two rows for each number in --report: the bound with its standard error, leave-one-out and
test errors, at the noise of the evidence and at that of leave-one-out (for numbers from --loo-from upwards).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import ScaleKernel
from jaxtyping import Float, Int
from numpy.typing import NDArray
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
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.held_rows import hold_rows
from orbitwise.inference.sparse.inducing import random_orbit_points
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.stochastic.polish import unbiased_bound
from orbitwise.inference.stochastic.trainer import Rates, StochasticTrainer
from orbitwise.kernels.bases import default_kernel
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


class Images(NamedTuple):
    """Rows of pixels between 0 and 1, and labels, for training and for the test."""

    x: Float[Tensor, "n d"]
    y: Int[Tensor, " n"]
    x_test: Float[Tensor, "t d"]
    y_test: Int[Tensor, " t"]


def load(kind: str, device: str, num_train: int) -> Images:
    """The first training images and all test images of a set.

    "rotated" turns image i of MNIST by draw i of default_rng(101), from 0 to 2π; "rotated_12000" is the set
    of 12,000 turned images for training and 50,000 for testing.
    """
    data = datasets.load("mnist_rot_generated" if kind == "rotated_12000" else "mnist")
    x, x_test = (
        torch.from_numpy(part.reshape(-1, 784)).to(device).float() / 255
        for part in (data.x_train, data.x_test)
    )
    y, y_test = (torch.from_numpy(part.astype(np.int64)).to(device) for part in (data.y_train, data.y_test))
    if kind == "rotated":
        angles = np.random.default_rng(101).uniform(0, 2 * np.pi, len(x) + len(x_test))
        x, x_test = turned(x, angles[: len(x)]), turned(x_test, angles[len(x) :])
    return Images(x[:num_train], y[:num_train], x_test, y_test)


def turned(images: Float[Tensor, "n d"], angles: NDArray[np.float64]) -> Float[Tensor, "n d"]:
    """Every image turned by its own angle, in radians."""
    alpha = torch.zeros(len(images), 1, 6).to(images)
    alpha[:, 0, 0] = torch.from_numpy(angles).to(images)
    parts = zip(images.split(5000), alpha.split(5000), strict=True)
    return torch.cat([AffineWarp(SHAPE)(rows, moves)[:, 0] for rows, moves in parts])


def evaluate(
    process: Process,
    functional: Functional,
    inducing: Tensor,
    noise: float,
    data: Images,
    generator: torch.Generator,
    with_leave_one_out: bool,
) -> list[dict[str, Any]]:
    """Find the best q for all training rows at once, and report bounds and errors.

    One row is for the noise under which the bound is greatest, and another, if asked for, for the noise under
    which the mean log loss of training labels, each predicted from all others, is least.
    """
    x, y, x_test, y_test = data
    targets = one_hot(y, 10) - 0.1
    held = hold_rows(process, functional, inducing, x, targets, generator)

    def loss(value: float) -> float:
        return held_out_loss(held.leave_one_out(value).mean, y)

    noises = {"evidence": least_noise(lambda value: -float(held.bound(value)), 2 * noise)}
    if with_leave_one_out:
        noises["leave-one-out"] = least_noise(loss, noises["evidence"])
    rows = []
    for choice, value in noises.items():
        held_out = held.leave_one_out(value).mean
        scale = best_scale(held_out, y)
        posterior = SparsePosterior(process, inducing, held.optimum(value), held.projected.lower)
        model = LatentModel(process, functional, Gaussian(value).to(x.device))
        residual, observed = held.projected.residual, Observations(Evaluation(), x, targets)
        bound = unbiased_bound(posterior, model, observed, residual, None, generator, num_passes=2)
        with torch.no_grad():
            parts = [posterior.moments(functional, part, generator).mean for part in x_test.split(500)]
        means = torch.cat(parts)
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
    device, settings = arguments.device, ORBITS[arguments.orbit]
    data = load(arguments.data, device, arguments.num_train)
    generator = torch.Generator(device).manual_seed(arguments.seed)
    orbit = None
    if settings is not None:
        orbit = ImageOrbit(SHAPE, num_samples=arguments.draws, draws="sobol", **settings).to(device)
    functional = Evaluation() if orbit is None else OrbitAverage(orbit)
    kernel = default_kernel(data.x[:2000].double(), separate_lengthscales=False)
    assert isinstance(kernel, ScaleKernel)
    process, likelihood = Process(None, kernel), Gaussian(0.05).to(device)
    start = time.perf_counter()
    record: dict[str, Any] = {"orbit": arguments.orbit, "data": arguments.data, "stages": [], "curve": []}
    rates = Rates(kernel=arguments.rate, orbit=arguments.orbit_rate)
    observed = (process, functional, likelihood, data.x, one_hot(data.y, 10) - 0.1)
    trainer: StochasticTrainer | None = None
    for size, steps in zip(arguments.inducing, arguments.steps, strict=True):
        inducing = random_orbit_points(functional, data.x, size, generator)
        if trainer is None:
            trainer = StochasticTrainer(*observed, inducing, generator, arguments.batch, rates)
        else:
            trainer.replace_inducing(inducing)
        if steps:
            trainer.run(steps, warm_up=min(50, steps // 4))
        history, noise = trainer.history, likelihood.noise.item()
        stage = {
            "num_inducing": size,
            "seconds": time.perf_counter() - start,
            "bound": history.smoothed[-1],
            "lengthscale": kernel.base_kernel.lengthscale.item(),
            "outputscale": kernel.outputscale.item(),
            "noise": noise,
            "back_offs": history.back_offs,
            "orbit": {} if orbit is None else orbit.learned(),
        }
        record["stages"].append(stage)
        record["history"] = history.smoothed[:: max(1, len(history.smoothed) // 200)]
        print(json.dumps(stage), flush=True)
        if size not in arguments.report:
            continue
        if orbit is not None:
            orbit.num_samples = arguments.polish_draws
        with_leave_one_out = size >= arguments.loo_from
        rows = evaluate(process, functional, inducing, noise, data, generator, with_leave_one_out)
        torch.cuda.empty_cache()
        for row in rows:
            row["seconds"] = time.perf_counter() - start
            print(json.dumps(row), flush=True)
        record["curve"] += rows
        if orbit is not None:
            orbit.num_samples = arguments.draws
    return record | {"total_seconds": time.perf_counter() - start}


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
