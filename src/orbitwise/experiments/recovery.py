"""Does learning find a known invariance, and do the stated intervals contain it?

    python -m orbitwise.experiments.recovery --device cuda --out results/recovery.json

Part "model" draws targets from the model itself, so that the ranges are known exactly, and counts how often
the 95 % intervals contain them. A drawn target is f(x) = E_α g(x_α) with g from an RBF prior and α uniform in
known ranges, plus small noise; the expectation is a sum over many more nodes than learning uses. Part
"images" moves real images within known ranges and learns these from the labels; because images vary anyway,
the learned ranges are expected to exceed the truth, by as much as those of unmoved images. The record is
written after every fit, and a run that was stopped resumes with the missing fits.

The record has "fits", each with the true and the learned upper end of every range, its standard error and the
ends of its 95 % interval, and "summary": the coverage and width of the intervals and the bias of the learned
ranges, for each problem and for all problems of part "model" together ("pooled").
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from orbitwise import datasets
from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.estimator import LearnedOrbit
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.experiments.records import Record, command_line
from orbitwise.functionals.averages import OrbitAverage, freeze_functional, gauss_dimensions
from orbitwise.inference.linear_algebra import cholesky
from orbitwise.orbits.clouds import PointCloudOrbit
from orbitwise.orbits.images import ImageOrbit
from orbitwise.orbits.orbit import Bounds, DrawnOrbit, image_widths
from orbitwise.orbits.signals import SignalOrbit
from orbitwise.process.process import Process
from orbitwise.transforms.images import AFFINE_PARAMETERS, AffineWarp

Array = NDArray[np.float64]
Truth = Mapping[str, float]

NOISE = 0.1
"""The standard deviation of the noise, relative to that of f."""
NODES_SEED = 7
"""The seed of the nodes that represent the true orbit; no fit uses them."""
SHAPES = {"digits": (8, 8), "mnist": (28, 28)}
LENGTH, SAMPLES_BEFORE = 32, 1.0
NUM_POINTS, ANGLE_BEFORE = 6, 0.2


@final
@dataclass(frozen=True)
class Setting:
    """A problem of part "model".

    `name` identifies the inputs. `truth` has the half-widths of the ranges by name, in the units of the
    orbit; zero means a move that the orbit offers but that f does not need. `lengthscale` is that of g, in
    units of the inputs.
    """

    name: str
    truth: Truth
    lengthscale: float

    def inputs(self, num_rows: int) -> Array:
        """Digits in random order, or made-up signals and point clouds."""
        generator = np.random.default_rng(0)
        kind = self.name.split(",")[0]
        if kind == "signals":
            return made_up_signals(num_rows, generator)
        if kind.startswith("clouds"):
            return generator.normal(size=(num_rows, NUM_POINTS * int(kind[-2])))
        return images_of("digits", num_rows)[0]

    def orbit(self, widths: Truth | None = None) -> DrawnOrbit:
        """The orbit with these half-widths; by default the one from which a user would start."""
        kind = self.name.split(",")[0]
        if kind == "signals":
            shift = SAMPLES_BEFORE if widths is None else widths["shift"]
            return SignalOrbit(LENGTH, shift, boundary="wrap")
        if kind.startswith("clouds"):
            angle = ANGLE_BEFORE if widths is None else widths["angle"]
            return PointCloudOrbit(NUM_POINTS, int(kind[-2]), angle)
        natural = {name: image_widths(SHAPES["digits"])[name] for name in self.truth}
        return ImageOrbit(SHAPES["digits"], natural if widths is None else _on(widths))


TURN = {"angle": math.radians(30)}
PIXEL = 2 / SHAPES["digits"][0]
SHIFT = {"shift_x": 1.3 * PIXEL, "shift_y": 0.8 * PIXEL}
"""Shifts of about one pixel, which is also the start of learning."""
SETTINGS = (
    Setting("digits, turned", TURN, 1.5),
    Setting("digits, shifted", SHIFT, 1.5),
    Setting("digits, turned and shifted", TURN | SHIFT, 1.5),
    Setting("digits, turned and not shifted", TURN | dict.fromkeys(SHIFT, 0.0), 1.5),
    Setting("signals, shifted", {"shift": 3.0}, 3.0),
    Setting("clouds 2D, turned", {"angle": math.radians(40)}, 2.0),
    Setting("clouds 3D, turned", {"angle": math.radians(60)}, 2.5),
)


def draw_targets(
    setting: Setting,
    x: Float[Tensor, "n d"],
    num_outputs: int,
    draws: Sequence[int],
    num_nodes: int,
) -> list[Float[Tensor, "n c"]]:
    """Targets of independent functions f, `num_outputs` columns for every draw: L z with LLᵀ = cov(f)."""
    functional = OrbitAverage(setting.orbit(setting.truth)).double()
    if gauss_dimensions(functional):
        frozen = freeze_functional(functional, num_nodes, rule="gauss")
    else:
        frozen = freeze_functional(functional, num_nodes, torch.Generator().manual_seed(NODES_SEED))
    kernel = RBFKernel().to(x)
    kernel.lengthscale = torch.tensor(setting.lengthscale)
    with torch.no_grad():
        covariance = Process(None, kernel).covariance(frozen.to(x.device).atoms(x))
    size = covariance.diagonal().mean().sqrt()
    lower = cholesky(covariance + 1e-9 * torch.eye(len(x)).to(x)).lower.cpu()
    targets = []
    for draw in draws:
        generator = torch.Generator().manual_seed(draw)
        normal = torch.randn(2, len(x), num_outputs, generator=generator, dtype=x.dtype)
        # f + noise
        targets.append(lower @ normal[0] + NOISE * size.cpu() * normal[1])
    return targets


def made_up_signals(num_rows: int, generator: np.random.Generator) -> Array:
    """Periodic signals of five random harmonics and unit variance."""
    time = 2 * np.pi * np.arange(LENGTH) / LENGTH
    harmonics = np.arange(1, 6)
    waves = np.concatenate([np.cos(harmonics[:, None] * time), np.sin(harmonics[:, None] * time)])
    return generator.normal(size=(num_rows, 10)) @ waves / math.sqrt(5)


def images_of(name: str, num_rows: int, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """The first images and labels of a set in random order, grey levels from 0 to 1."""
    found = datasets.load(name)
    images, labels = (found.x, found.y) if name == "digits" else (found.x_train, found.y_train)
    rows = np.random.default_rng(seed).permutation(len(images))[:num_rows]
    return images[rows].reshape(len(rows), -1).astype(np.float64) / float(images.max()), labels[rows]


def moved_images(images: Array, shape: tuple[int, int], truth: Truth, seed: int) -> Array:
    """Each image moved once, uniformly within ± the half-widths."""
    bounds = Bounds(AFFINE_PARAMETERS, _on(truth), ())
    noise = np.random.default_rng([seed, 1]).uniform(-1, 1, (len(images), 1, len(AFFINE_PARAMETERS)))
    with torch.no_grad():
        alpha = bounds.place(torch.from_numpy(noise))
        return AffineWarp(shape)(torch.from_numpy(images), alpha)[:, 0].numpy()


def _on(widths: Truth) -> dict[str, float]:
    return {name: width for name, width in widths.items() if width > 0}


Fit = dict[str, Any]
"""A fit: its identity ("part", "problem", "draw"), "truth", "ranges", and the course of the search."""

ANGLES = (0, 30, 45, 90, 135, 180)
SCALES = (0.0, 0.15, 0.3)
PIXELS = {"digits": (0.0, 0.5, 1.0), "mnist": (0.0, 1.5, 3.0)}


def learned_ranges(model: LearnedOrbit) -> dict[str, dict[str, float]]:
    """The upper end of every learned range, its standard error, and the ends of its 95 % interval."""
    errors, intervals = model.orbit_errors_, model.orbit_intervals_
    return {
        name: {"learned": high, "error": errors[name], "low": intervals[name][0], "high": intervals[name][1]}
        for name, (_, high) in model.orbit_.learned().items()
    }


def measured(
    model: InvariantGPRegressor | InvariantGPClassifier, x: Array, y: NDArray[Any], truth: Truth
) -> Fit:
    """Fit, and return the learned ranges, the truth, and the course of the search."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    return {
        "truth": dict(truth),
        "ranges": learned_ranges(model),
        "log_evidence": model.log_evidence_,
        "log_evidence_error": model.log_evidence_error_,
        "num_nodes": model.search_[-1]["num_nodes"],
        "stopped_by": model.stopped_by_,
        "converged": bool(model.converged_),
        "seconds": time.perf_counter() - start,
    }


def model_fits(arguments: argparse.Namespace, done: set[tuple[str, int]]) -> Iterator[Fit]:
    """Fit targets drawn from the model itself, for all settings and draws that are missing."""
    for setting in (each for each in SETTINGS if _is_wanted(each.name, arguments.problems)):
        draws = [draw for draw in range(arguments.draws) if (setting.name, draw) not in done]
        if not draws:
            continue
        x = torch.from_numpy(setting.inputs(arguments.rows)).double().to(arguments.device)
        targets = draw_targets(setting, x, arguments.outputs, draws, arguments.true_nodes)
        for draw, y in zip(draws, targets, strict=True):
            model = InvariantGPRegressor(
                invariance=setting.orbit(),
                max_nodes=arguments.max_nodes,
                device=arguments.device,
                random_state=draw,
            )
            key = {"part": "model", "problem": setting.name, "draw": draw}
            yield key | measured(model, x.cpu().numpy(), y.numpy(), setting.truth)


def image_moves(name: str) -> dict[str, Truth]:
    """The ranges within which images of a set are moved, by the name of the move."""
    pixel = 2 / SHAPES[name][0]
    moves: dict[str, Truth] = {f"turned by ±{angle}°": {"angle": math.radians(angle)} for angle in ANGLES}
    for size in PIXELS[name]:
        moves[f"shifted by ±{size:g} pixels"] = dict.fromkeys(("shift_x", "shift_y"), size * pixel)
    for size in SCALES:
        moves[f"scaled by ±{size:g} in logarithm"] = dict.fromkeys(("log_scale_x", "log_scale_y"), size)
    return moves


def image_fits(arguments: argparse.Namespace, done: set[tuple[str, int]]) -> Iterator[Fit]:
    """Fit real images moved within known ranges, for all sets, moves and seeds that are missing."""
    for name in arguments.sets:
        natural = image_widths(SHAPES[name])
        for move, truth in image_moves(name).items():
            problem = f"{name}, {move}"
            if not _is_wanted(problem, arguments.problems):
                continue
            for seed in (each for each in range(arguments.seeds) if (problem, each) not in done):
                images, labels = images_of(name, arguments.images, seed)
                x = moved_images(images, SHAPES[name], truth, seed)
                model = InvariantGPClassifier(
                    invariance=ImageOrbit(SHAPES[name], {each: natural[each] for each in truth}),
                    image_shape=SHAPES[name],
                    max_nodes=arguments.max_nodes,
                    device=arguments.device,
                    random_state=seed,
                )
                key = {"part": "images", "problem": problem, "draw": seed}
                yield key | measured(model, x, labels, truth)


def summarise(fits: Sequence[Fit]) -> dict[str, Any]:
    """Coverage, width and bias for each problem, and the coverage of all draws from the model together."""
    problems = {fit["problem"]: fit["part"] for fit in fits}
    summary: dict[str, Any] = {
        name: {"part": part} | _of_problem([fit for fit in fits if fit["problem"] == name])
        for name, part in problems.items()
    }
    drawn = [fit for fit in fits if fit["part"] == "model"]
    return {"problems": summary} | ({"pooled": _pooled(drawn)} if drawn else {})


def _of_problem(fits: Sequence[Fit]) -> dict[str, Any]:
    ranges = {}
    for name, truth in fits[0]["truth"].items():
        found = [fit["ranges"][name] for fit in fits]
        learned = [each["learned"] for each in found]
        ranges[name] = {
            "truth": truth,
            "median": float(np.median(learned)),
            "least": min(learned),
            "most": max(learned),
            "bias": float(np.mean(learned)) - truth,
            "median_error": float(np.median([each["error"] for each in found])),
            "least_low": min(each["low"] for each in found),
            "coverage": float(np.mean([_holds(each, truth) for each in found])),
        }
    return {"fits": len(fits), "ranges": ranges} | _pooled(fits)


def _pooled(fits: Sequence[Fit]) -> dict[str, Any]:
    """Coverage of all ranges; widths of intervals and errors for ranges that are not zero.

    `root_mean_square_z` is the root mean square of (learned - truth)/error, which is 1 if the errors are
    correct.
    """
    pairs = [(fit["ranges"][name], truth) for fit in fits for name, truth in fit["truth"].items()]
    widths = [(found["high"] - found["low"]) / 2 / truth for found, truth in pairs if truth > 0]
    z = [(found["learned"] - truth) / found["error"] for found, truth in pairs if truth * found["error"] > 0]
    return {
        "coverage": float(np.mean([_holds(found, truth) for found, truth in pairs])),
        "intervals": len(pairs),
        "median_half_width": float(np.median(widths)) if widths else None,
        "root_mean_square_z": float(np.sqrt(np.mean(np.square(z)))) if z else None,
        "converged": float(np.mean([fit["converged"] for fit in fits])),
        "median_seconds": float(np.median([fit["seconds"] for fit in fits])),
    }


def _holds(found: Mapping[str, float], truth: float) -> bool:
    return found["low"] <= truth <= found["high"]


def _is_wanted(name: str, wanted: Sequence[str] | None) -> bool:
    return not wanted or any(each in name for each in wanted)


def main() -> None:
    """Read the command line, run the missing fits, and write the record after each."""
    parser = command_line(__doc__, is_required=False)
    parser.add_argument("--parts", nargs="+", choices=("model", "images"), default=["model", "images"])
    parser.add_argument("--problems", nargs="+", help="only those whose names contain one of these")
    parser.add_argument("--sets", nargs="+", choices=tuple(SHAPES), default=["digits"])
    parser.add_argument("--draws", type=int, default=20, help="of targets for every setting")
    parser.add_argument("--seeds", type=int, default=3, help="sets of images for every move")
    parser.add_argument("--rows", type=int, default=250, help="inputs of part model")
    parser.add_argument("--outputs", type=int, default=16, help="functions that share an orbit, part model")
    parser.add_argument("--images", type=int, default=400, help="images of part images")
    parser.add_argument("--true-nodes", type=int, default=1024)
    parser.add_argument("--max-nodes", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="a few small fits as a trial run")
    arguments = parser.parse_args()
    if arguments.quick:
        quick = {"draws": 1, "seeds": 1, "rows": 40, "outputs": 4, "images": 40}
        vars(arguments).update(quick, true_nodes=64, max_nodes=16)
    settings = {name: value for name, value in vars(arguments).items() if name not in ("out", "device")}
    record = Record(arguments.out, {"fits": []})
    record.values |= {"settings": settings, "device": arguments.device}
    fits = record.values["fits"]
    kinds = {"model": model_fits, "images": image_fits}
    for part in arguments.parts:
        done = {(fit["problem"], fit["draw"]) for fit in fits if fit["part"] == part}
        for fit in kinds[part](arguments, done):
            print(json.dumps(fit, ensure_ascii=False), flush=True)
            fits.append(fit)
            record.write(summary=summarise(fits))
    print(json.dumps(summarise(fits), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
