"""LIM figure 4: MNIST without an invariance, with rotation, affine moves and local deformations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from orbitwise.reproduce.images import (
    COLOURS,
    RBF,
    classify,
    difference_error,
    legend,
    mean_over,
    order_claim,
    source_of,
)
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.tables import over_seeds

MODELS = (RBF, "rotation", "affine", "deformation")
ALSO = "affine+deformation"
"""A model that the paper does not have: affine moves followed by smooth displacements."""
FACTORS = (0.3, 1.0, 2.0)
"""Where learning starts, in units of ordinary sizes of moves."""
FINAL, BEST = "final", "best"


def cells(setting: Setting) -> Mapping[str, Cell]:
    """Curves from every start with the first seed, and final results of every seed."""
    source = source_of(setting, (60, 200, 60_000))
    steps = setting.pick((2,), (3, 10, 30), (100, 300, 900, 1800))
    # exact inference searches from starts of its own
    factors = setting.pick((1.0,), (1.0,), FACTORS)
    found: dict[str, Cell] = {}

    def add(
        name: str, model: str, factor: float, seed: int, inducing: int, count: int, seconds: float
    ) -> None:
        # a few images are worth exact inference, because bounds of orbits need many inducing points for each
        settings: dict[str, Any] = setting.pick(
            {"inference": "exact", "num_nodes": 2, "max_iterations": count},
            {"inference": "exact", "num_nodes": 16, "max_iterations": count},
            {"num_inducing": inducing, "num_steps": count, "batch_size": 256},
        )
        options = {
            "images": source,
            "degrees": 0.0,
            "model": model,
            "factor": factor,
            "two_sided": True,
            "settings": settings,
            "seed": seed,
        }
        found[f"{name}, seed {seed}"] = Cell(classify, options, seconds, (source["data"],))

    for model in MODELS:
        for factor in factors if model != RBF else (1.0,):
            for count in steps:
                seconds = setting.pick(0.5, 1 + 0.3 * count, 6 + 0.015 * count)
                add(f"{model}, from {factor:g}, {count} steps", model, factor, 0, 500, count, seconds)
    for seed in setting.seeds:
        for model in MODELS if setting.scale == "tiny" else (*MODELS, ALSO):
            add(
                f"{model}, {FINAL}",
                model,
                1.0,
                seed,
                8000,
                steps[-1],
                setting.pick(0.5, 10.0, 60.0),
            )
        if setting.scale == "full":
            add(f"{ALSO}, {BEST}", ALSO, 1.0, seed, 40_000, steps[-1], 150.0)
    return found


def finals(numbers: Cells) -> dict[str, list[Numbers]]:
    """The final fits of every model, one per seed."""
    found = {model: over_seeds(numbers, f"{model}, {FINAL}") for model in (*MODELS, ALSO)}
    return {model: fits for model, fits in found.items() if fits}


def curves(numbers: Cells, model: str) -> dict[str, dict[int, Numbers]]:
    """The fits of a model by their start and number of steps."""
    found: dict[str, dict[int, Numbers]] = {}
    for name, fit in numbers.items():
        parts = name.split(", ")
        if parts[0] == model and parts[1].startswith("from"):
            found.setdefault(parts[1], {})[int(parts[2].split()[0])] = fit
    return found


def claims(numbers: Cells) -> list[Claim]:
    """The statements of LIM 5.2."""
    fits = finals(numbers)
    errors = {model: mean_over(own, "error") for model, own in fits.items()}
    plain, shown = errors[RBF], ", ".join(f"{model} {error:.2f} %" for model, error in errors.items())
    some = {model: next(iter(own)) for model, own in fits.items()}
    invariant = [model for model in MODELS if model != RBF]
    found = [
        Claim.of(
            "All invariant kernels clearly outperform the RBF kernel",
            "no numbers in the text",
            shown,
            all(plain - errors[model] > 2 * difference_error(some[RBF], some[model]) for model in invariant),
            "some difference is within two standard errors",
        )
    ]
    ends = [
        list(curve.values())[-1]["error"]
        for model in ("affine", "deformation")
        for curve in curves(numbers, model).values()
    ]
    (plain_curve,) = curves(numbers, RBF).values()
    base = list(plain_curve.values())[-1]["error"]
    count = len(curves(numbers, "affine"))
    starts = f"all {count} starts" if count > 1 else "the starts of exact inference"
    found.append(
        Claim.of(
            "Affine moves and local deformations perform similarly, from a wide range of starts",
            "no numbers in the text",
            f"{min(ends):.2f} to {max(ends):.2f} % from {starts}, RBF {base:.2f} %",
            max(ends) < base and max(ends) - min(ends) < 0.5 * (base - max(ends)),
            "starts or models differ by more than half of what they gain",
        )
    )
    best = min(errors["affine"], errors["deformation"])
    found.append(
        Claim.of(
            "Rotation alone is only slightly better than the baseline",
            "no numbers in the text",
            f"rotation {errors['rotation']:.2f} %, RBF {plain:.2f} %, the better of the others {best:.2f} %",
            0 < plain - errors["rotation"] < 0.5 * (plain - best),
            "it gains as much as half of what the others gain, or nothing",
        )
    )
    found.append(order_claim(fits, "no numbers in the text"))
    if top := over_seeds(numbers, f"{ALSO}, {BEST}"):
        found.append(
            Claim(
                "The lowest error, with many more inducing points than the paper has",
                "no number in the text",
                f"{mean_over(top, 'error'):.2f} % with M = {top[0]['num_inducing']:,}, {len(top)} seeds",
                "differs",
                "affine moves and deformations together, more inducing points, noise chosen by leave-one-out",
            )
        )
    return found


def draw(numbers: Cells, figure: Figure) -> None:
    """Test error and bound against the number of steps, one line per start; final results."""
    figure.set_size_inches(11, 3.4)
    axes = figure.subplots(1, 3)
    for model in MODELS:
        for curve in curves(numbers, model).values():
            for axis, key in zip(axes, ("error", "log_evidence"), strict=False):
                look = {"color": COLOURS[model], "marker": ".", "label": model}
                axis.plot(list(curve), [fit[key] for fit in curve.values()], **look)
    for model, fits in finals(numbers).items():
        for fit in fits:
            low = fit["log_evidence"] if fit["half_bound"] is None else fit["half_bound"]
            look = {"color": COLOURS[model], "label": model}
            axes[2].plot([low, fit["log_evidence"]], [fit["error"]] * 2, linewidth=0.8, **look)
            axes[2].plot(fit["log_evidence"], fit["error"], "o", **look)
    legend(axes[0], "test error", "steps", "%")
    axes[1].set(title="log marginal likelihood bound", xlabel="steps", ylabel="nats")
    legend(axes[2], "final results", "bound (line: from half of the inducing points)", "test error in %")


RESULT = Result(
    name="lim-fig4",
    title="Images of digits without an invariance, with rotation, affine moves and local deformations",
    source="LIM, figure 4 (section 5.2)",
    printed="Curves over training time and final results; no numbers in the text.",
    cells=cells,
    claims=claims,
    draw=draw,
)
