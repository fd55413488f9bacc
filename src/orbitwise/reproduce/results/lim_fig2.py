"""LIM figure 2: data from a symmetric function, learned with and without the symmetry."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.tables import mean_of

Array = NDArray[np.float64]

MODELS = {"invariant": "permutation", "non-invariant": None}
NOISE, NUM_TEST, SIDE = 0.2, 2000, 41


def truth(x: Array) -> Array:
    """A function with f(x₁, x₂) = f(x₂, x₁)."""
    total, difference = x[:, 0] + x[:, 1], x[:, 0] - x[:, 1]
    return 1.5 * np.sin(1.2 * total) * np.cos(0.9 * difference) + 0.9 * np.cos(2 * difference)


def run(model: str, num_train: int, seed: int, device: str) -> Numbers:
    """One model on one draw of the data; the first draw also keeps what is drawn."""
    rng = np.random.default_rng(seed)
    x, new = rng.uniform(-2, 2, size=(num_train, 2)), rng.uniform(-2, 2, size=(NUM_TEST, 2))
    y = truth(x) + NOISE * rng.normal(size=num_train)
    gp = InvariantGPRegressor(invariance=MODELS[model], normalize_y=False, device=device).fit(x, y)
    numbers: Numbers = {
        "training_rmse": float(np.sqrt(np.mean((gp.predict(x) - y) ** 2))),
        "test_rmse": float(np.sqrt(np.mean((gp.predict(new) - truth(new)) ** 2))),
        "log_evidence": gp.log_evidence_,
        "noise": gp.noise_,
    }
    if seed == 0:
        places = np.linspace(-2, 2, SIDE)
        grid = np.stack(np.meshgrid(places, places), axis=-1).reshape(-1, 2)
        surface = gp.predict(grid).reshape(SIDE, SIDE)
        numbers |= {"x": x.round(4).tolist(), "y": y.round(4).tolist(), "surface": surface.round(3).tolist()}
    return numbers


def cells(setting: Setting) -> Mapping[str, Cell]:
    """Both models on every draw."""
    return {
        f"{model}, seed {seed}": Cell(run, {"model": model, "num_train": 40, "seed": seed}, 0.7)
        for seed in setting.seeds
        for model in MODELS
    }


def claims(numbers: Cells) -> list[Claim]:
    """The three statements of LIM 3.2 and of the caption."""

    def compared(key: str, form: str) -> str:
        return ", ".join(f"{model} {mean_of(numbers, model, key):{form}}" for model in MODELS)

    def first_is_less(key: str, first: str, second: str) -> bool:
        return mean_of(numbers, first, key) < mean_of(numbers, second, key)

    return [
        Claim.of(
            "The non-invariant model fits the training data even marginally better",
            "training RMSE, no number",
            compared("training_rmse", ".3f"),
            first_is_less("training_rmse", "non-invariant", "invariant"),
        ),
        Claim.of(
            "The invariant model generalises better",
            "no number",
            f"test RMSE {compared('test_rmse', '.3f')}",
            first_is_less("test_rmse", "invariant", "non-invariant"),
        ),
        Claim.of(
            "The marginal likelihood identifies the best model",
            "no number",
            f"log evidence {compared('log_evidence', '.1f')}",
            first_is_less("log_evidence", "non-invariant", "invariant"),
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """The data, and both solutions."""
    figure.set_size_inches(9, 3.2)
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    shown = {model: numbers[f"{model}, seed 0"] for model in MODELS}
    x, y = (np.array(shown["invariant"][key]) for key in "xy")
    levels = {"vmin": float(y.min()), "vmax": float(y.max())}
    axes[0].scatter(*x.T, c=y, s=24, **levels)
    axes[0].set_title("data")
    for axis, (model, each) in zip(axes[1:], shown.items(), strict=True):
        axis.imshow(each["surface"], origin="lower", extent=(-2, 2, -2, 2), **levels)
        axis.scatter(*x.T, c=y, s=14, edgecolors="white", linewidths=0.5, **levels)
        axis.set_title(
            f"{model}\ntest RMSE {each['test_rmse']:.2f}, log evidence {each['log_evidence']:.1f}",
            fontsize=10,
        )
    for axis in axes:
        axis.axline((0, 0), slope=1, color="grey", linewidth=0.7, linestyle="--")
        axis.set_aspect("equal")


RESULT = Result(
    name="lim-fig2",
    title="Data from a symmetric function with the solutions of an invariant and a non-invariant model",
    source="LIM, figure 2 (section 3.2)",
    printed="Pictures of the data and of both solutions; no numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
    seeds=(1, 10, 10),
)
