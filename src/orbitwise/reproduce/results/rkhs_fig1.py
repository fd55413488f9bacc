"""RKHS figure 1: two moons with two labels; the boundary moves into the gap as slopes weigh more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.datasets import make_moons

from orbitwise.estimators.svc import InvariantSVC
from orbitwise.functionals.derivatives import Gradient
from orbitwise.losses import EpsilonInsensitive
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.tables import mean_of

Array = NDArray[np.float64]

STRENGTHS = (0.0, 0.01, 0.1, 1.0)
BANDWIDTH, EPSILON, NEAR = 0.25, 0.01, 0.15
LOSSES: dict[str, dict[str, Any]] = {
    "logistic, squared": {"loss": "logistic", "invariance_loss": "squared"},
    "hinge, ε-insensitive": {"loss": "hinge", "invariance_loss": EpsilonInsensitive(EPSILON)},
}
COLUMNS, ROWS = 61, 41


def moons(num_points: int, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Points, their classes, and one label of each: in the middle of the arcs, or drawn by later seeds."""
    x, y = map(np.asarray, make_moons(num_points, noise=0.05, random_state=1))
    if seed == 0:
        middles = ([0.0, 1.0], [1.0, -0.5])
        pair = [
            np.flatnonzero(y == label)[((x[y == label] - middles[label]) ** 2).sum(1).argmin()]
            for label in (0, 1)
        ]
    else:
        rng = np.random.default_rng(seed)
        pair = [rng.choice(np.flatnonzero(y == label)) for label in (0, 1)]
    return x, y, np.array(pair)


def crowding(model: InvariantSVC, x: Array) -> float:
    """The share of points with another predicted class within a distance of `NEAR`."""
    turns = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    circle = NEAR * np.stack([np.cos(turns), np.sin(turns)], -1)
    around = model.predict((x[:, None] + circle).reshape(-1, 2)).reshape(len(x), -1)
    return float((around != model.predict(x)[:, None]).any(1).mean())


def run(losses: str, num_points: int, seed: int, device: str) -> Numbers:
    """The machines of one row of the figure, for one pair of labels."""
    x, y, pair = moons(num_points, seed)
    others = np.setdiff1d(np.arange(len(x)), pair)
    numbers: Numbers = {}
    low, high = x.min(0) - 0.35, x.max(0) + 0.35
    places = np.meshgrid(np.linspace(low[0], high[0], COLUMNS), np.linspace(low[1], high[1], ROWS))
    for strength in STRENGTHS:
        # the name "gradient" counts slopes in bandwidths; the functional, as the figure does, in units of x
        model = InvariantSVC(
            invariance=Gradient(), bandwidth=BANDWIDTH, C=1.0, strength=strength, **LOSSES[losses]
        ).fit(x[pair], y[pair], unlabeled=x[others])
        numbers[f"error at {strength:g}"] = 100 * float((model.predict(x[others]) != y[others]).mean())
        numbers[f"crowding at {strength:g}"] = crowding(model, x)
        if seed == 0:
            surface = model.decision_function(np.stack(places, -1).reshape(-1, 2)).reshape(ROWS, COLUMNS)
            largest = np.abs(model.decision_function(x)).max()
            numbers[f"surface at {strength:g}"] = (surface / largest).round(3).tolist()
    if seed == 0:
        numbers |= {"x": x.round(3).tolist(), "y": y.tolist(), "pair": pair.tolist()}
        numbers["extent"] = [float(each) for each in (low[0], high[0], low[1], high[1])]
    return numbers


def cells(setting: Setting) -> Mapping[str, Cell]:
    """Both rows for every pair of labels."""
    num_points = setting.pick(60, 200, 200)
    return {
        f"{losses}, seed {seed}": Cell(run, {"losses": losses, "num_points": num_points, "seed": seed}, 4.0)
        for seed in setting.seeds
        for losses in LOSSES
    }


def claims(numbers: Cells) -> list[Claim]:
    """What section 6.1 says of the figure."""
    squared, hinge = LOSSES

    def series(losses: str, what: str) -> list[float]:
        return [mean_of(numbers, losses, f"{what} at {strength:g}") for strength in STRENGTHS]

    def shown(values: list[float], unit: str) -> str:
        pairs = zip(STRENGTHS, values, strict=True)
        return ", ".join(f"{value:.3g}{unit} at ν = {strength:g}" for strength, value in pairs)

    error, other = series(squared, "error"), series(hinge, "error")
    near = [100 * each for each in series(squared, "crowding")]
    return [
        Claim.of(
            "Unlabelled data improve the accuracy as ν grows",
            "a picture",
            "error on unlabelled points " + shown(error, " %"),
            error[-1] < error[0],
        ),
        Claim.of(
            "More and more emphasis on placing the boundary in regions of low density",
            "a picture",
            f"points within {NEAR} of the boundary: " + shown(near, " %"),
            near[-1] < near[0],
        ),
        Claim.of(
            "Hinge and ε-insensitive loss have similar results",
            "no number",
            f"error {shown(other, ' %')} (ε = {EPSILON})",
            other[-1] < other[0],
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """Both rows of machines, with the two labels."""
    figure.set_size_inches(14, 5.4)
    axes = figure.subplots(len(LOSSES), len(STRENGTHS), sharex=True, sharey=True)
    for line, losses in zip(axes, LOSSES, strict=True):
        found = numbers[f"{losses}, seed 0"]
        x, y = np.array(found["x"]), np.array(found["y"])
        for axis, strength in zip(line, STRENGTHS, strict=True):
            extent, surface = found["extent"], np.array(found[f"surface at {strength:g}"])
            left, right, low, high = extent
            across, up = np.linspace(left, right, COLUMNS), np.linspace(low, high, ROWS)
            levels = np.linspace(-1.2, 1.2, 25)
            axis.contourf(across, up, surface, levels=levels, cmap="RdBu", alpha=0.5, extend="both")
            axis.contour(across, up, surface, levels=[0.0], colors="black", linewidths=2)
            for label, marker, colour in ((0, "o", "tab:red"), (1, "s", "black")):
                axis.scatter(*x[y == label].T, s=6, color="grey")
                axis.scatter(*x[found["pair"][label]], s=90, color=colour, marker=marker, edgecolors="white")
            axis.set(xticks=[], yticks=[], aspect="equal")
            axis.set_title(f"ν = {strength:g}: error {found[f'error at {strength:g}']:.1f} %", fontsize=10)
        line[0].set_ylabel(losses)


RESULT = Result(
    name="rkhs-fig1",
    title="Decision boundaries for two moons with two labels as the weight of slopes grows",
    source="RKHS, figure 1 (section 6.1)",
    printed="Four decision boundaries for ν = 0, 0.01, 0.1 and 1; no numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
    seeds=(1, 6, 20),
)
