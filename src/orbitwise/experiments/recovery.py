"""Does learning find a known invariance, and do the stated intervals hold it?

    python -m orbitwise.experiments.recovery --device cuda --out results/recovery.json

Part "model" draws targets from the model itself, so that the ranges are known exactly, and counts how often
the 95 % intervals hold them. Part "images" moves real images within known ranges and learns these from the
labels; images that varied before are expected to show more than the truth, and the unmoved ones say how much.
The record is written after every fit, and fits that it has already are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.estimator import LearnedOrbit
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.experiments.known_ranges import (
    SETTINGS,
    SHAPES,
    Truth,
    draw_targets,
    images_of,
    moved_images,
)
from orbitwise.experiments.records import write_record
from orbitwise.orbits.images import ImageOrbit
from orbitwise.orbits.ranges import image_widths

Fit = dict[str, Any]
"""What identifies a fit ("part", "problem", "draw"), "truth", "ranges", and how the search went."""

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


def measured(model: Any, x: Any, y: Any, truth: Truth) -> Fit:
    """Fit, and tell what was learned beside the truth, and how the search went."""
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
    """Targets from the model itself, for every setting and draw that is not done."""
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
    """The ranges that images of this set are moved within, by what they are called."""
    pixel = 2 / SHAPES[name][0]
    moves: dict[str, Truth] = {f"turned by ±{angle}°": {"angle": math.radians(angle)} for angle in ANGLES}
    for size in PIXELS[name]:
        moves[f"shifted by ±{size:g} pixels"] = dict.fromkeys(("shift_x", "shift_y"), size * pixel)
    for size in SCALES:
        moves[f"scaled by ±{size:g} in logarithm"] = dict.fromkeys(("log_scale_x", "log_scale_y"), size)
    return moves


def image_fits(arguments: argparse.Namespace, done: set[tuple[str, int]]) -> Iterator[Fit]:
    """Real images moved within known ranges, for every set, move and seed that is not done."""
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
    """Coverage of all ranges, and how wide intervals and how far off answers are, where ranges are not zero.

    `root_mean_square_z` is that of (learned - truth)/error, which is 1 for errors that are right.
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
    """Read the command line, run what is not done yet, and write the record after every fit."""
    parser = argparse.ArgumentParser(description=__doc__)
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
    parser.add_argument("--quick", action="store_true", help="a few small fits, to see that all works")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        quick = {"draws": 1, "seeds": 1, "rows": 40, "outputs": 4, "images": 40}
        vars(arguments).update(quick, true_nodes=64, max_nodes=16)
    out = arguments.out
    settings = {name: value for name, value in vars(arguments).items() if name not in ("out", "device")}
    record: dict[str, Any] = {"settings": settings, "device": arguments.device, "fits": []}
    if out is not None and out.is_file():
        record["fits"] = json.loads(out.read_text(encoding="utf-8"))["fits"]
    kinds = {"model": model_fits, "images": image_fits}
    for part in arguments.parts:
        done = {(fit["problem"], fit["draw"]) for fit in record["fits"] if fit["part"] == part}
        for fit in kinds[part](arguments, done):
            print(json.dumps(fit, ensure_ascii=False), flush=True)
            record["fits"].append(fit)
            if out is not None:
                write_record(record | {"summary": summarise(record["fits"])}, out)
    print(json.dumps(summarise(record["fits"]), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
