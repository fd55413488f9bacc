"""Lecture 3: the L2 distance need not be the best one in high dimensions; what a learned one does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from matplotlib.figure import Figure

from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.kernels import WideNetworkKernel
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting

NOISE, NUM_TEST, RELEVANT = 0.1, 1000, 2
KERNELS = {
    "L2 distance": "one lengthscale for all columns",
    "a lengthscale per column": "distances that are learned",
    "wide network": "angles instead of distances",
    "L2 of the relevant columns": "what a better distance could do at most",
}


def truth(x: np.ndarray) -> np.ndarray:
    """A function of the first two columns."""
    return np.sin(2 * x[:, 0]) + x[:, 1] ** 2 / 2


def kernel_of(name: str, width: int) -> Kernel:
    """A kernel by its name."""
    if name == "wide network":
        return ScaleKernel(WideNetworkKernel(2))
    columns = width if name == "a lengthscale per column" else None
    kernel = RBFKernel(ard_num_dims=columns)
    kernel.lengthscale = kernel.lengthscale.detach() * width**0.5
    return ScaleKernel(kernel)


def run(kernel: str, width: int, num_rows: int, seed: int, device: str) -> Numbers:
    """Test error and evidence of one kernel with `width` columns, of which two matter."""
    rng = np.random.default_rng(seed)
    x, new = rng.normal(size=(num_rows, width)), rng.normal(size=(NUM_TEST, width))
    y = truth(x) + NOISE * rng.normal(size=num_rows)
    if kernel == "L2 of the relevant columns":
        x, new = x[:, :RELEVANT], new[:, :RELEVANT]
    model = InvariantGPRegressor(
        kernel_of(kernel, x.shape[1]), inference="exact", num_restarts=0, random_state=0, device="cpu"
    ).fit(x, y)
    distances = np.linalg.norm(x[:, None] - x[None], axis=-1)[np.triu_indices(num_rows, 1)]
    return {
        "kernel": kernel,
        "width": width,
        "rmse": float(np.sqrt(np.mean((model.predict(new) - truth(new)) ** 2))),
        "log_evidence": model.log_evidence_,
        "contrast": float(distances.std() / distances.mean()),
    }


def cells(setting: Setting) -> Mapping[str, Cell]:
    """All kernels at every number of columns."""
    widths = setting.pick((2, 8), (2, 5, 10, 20, 40), (2, 5, 10, 20, 40, 80))
    num_rows = setting.pick(50, 150, 300)
    return {
        f"{kernel}, {width} columns, seed {seed}": Cell(
            run, {"kernel": kernel, "width": width, "num_rows": num_rows, "seed": seed}, 1.5
        )
        for seed in setting.seeds
        for width in widths
        for kernel in KERNELS
    }


def series(numbers: Cells, kernel: str, key: str) -> dict[int, float]:
    """The mean over seeds for every number of columns."""
    widths = sorted({each["width"] for each in numbers.values()})
    return {
        width: float(
            np.mean([e[key] for e in numbers.values() if (e["kernel"], e["width"]) == (kernel, width)])
        )
        for width in widths
    }


def claims(numbers: Cells) -> list[Claim]:
    """The sentence of section 3, taken apart."""
    plain, learned, wide, best = (series(numbers, kernel, "rmse") for kernel in KERNELS)
    first, last = min(plain), max(plain)
    contrast = series(numbers, "L2 distance", "contrast")
    gain = (
        series(numbers, "a lengthscale per column", "log_evidence")[last]
        - series(numbers, "L2 distance", "log_evidence")[last]
    )
    return [
        Claim.of(
            "The L2 distance need not be the best one in higher dimensions",
            "no number",
            f"test error {plain[first]:.2f} with {first} columns and {plain[last]:.2f} with {last}, of "
            "which two "
            f"matter; {best[last]:.2f} with these two alone",
            plain[last] > 2 * best[last],
        ),
        Claim.of(
            "Distances of points become alike",
            "not said",
            f"deviation over mean of distances: {contrast[first]:.2f} with {first} columns, "
            f"{contrast[last]:.2f} with {last}",
            contrast[last] < 0.7 * contrast[first],
        ),
        Claim.of(
            "A distance that is learned by the evidence mends it",
            "named as a line of research",
            f"test error {learned[last]:.2f} with a lengthscale per column, {wide[last]:.2f} by angles "
            "(a wide "
            f"network); evidence {gain:+.0f} nats over the L2 distance",
            learned[last] < 0.6 * plain[last] and gain > 5,
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """Test error and evidence against the number of columns."""
    figure.set_size_inches(9, 3.6)
    axes = figure.subplots(1, 2)
    for axis, key in zip(axes, ("rmse", "log_evidence"), strict=True):
        for kernel in KERNELS:
            values = series(numbers, kernel, key)
            axis.plot(list(values), list(values.values()), "o-", label=kernel)
        axis.set(xlabel="columns, of which two matter", xscale="log")
        axis.set_xticks(list(series(numbers, "L2 distance", key)))
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.minorticks_off()
        axis.set_ylabel({"rmse": "test error", "log_evidence": "log evidence, nats"}[key])
    axes[0].legend(fontsize=8)


RESULT = Result(
    name="lecture-metrics",
    title="Test error as columns that do not matter are added, for several distances",
    source="Lecture 3",
    printed="Words: the L2 distance need not be the best representative distance in higher dimensions.",
    cells=cells,
    claims=claims,
    draw=draw,
    seeds=(1, 2, 10),
)
