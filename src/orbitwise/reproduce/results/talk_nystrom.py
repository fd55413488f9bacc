"""Nyström's approximation, whose variances can be negative, and inducing variables, whose cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from matplotlib.figure import Figure

from orbitwise.inference import exact
from orbitwise.inference.sparse import nystrom
from orbitwise.inference.sparse.inducing import greedy_choice
from orbitwise.inference.stored_rows import held_rows
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.talk_demo import grid, process_of, rounded, variational, waves

NOISE, LENGTHSCALE = 0.25, 0.4
METHODS = {
    "exact": ("exact", "black"),
    "nystrom": ("Nyström", "tab:red"),
    "sor": ("subset of regressors", "tab:orange"),
    "variational": ("inducing variables", "tab:blue"),
}


@torch.no_grad()
def run(num_rows: int, num_inducing: int, seed: int, device: str) -> Numbers:
    """Predicted means and variances of f by all methods, with the same points."""
    rows, process, queries = waves(num_rows, NOISE, seed), process_of(LENGTHSCALE), grid(281)
    noise, asked = torch.tensor(NOISE**2, dtype=torch.float64), rows.functional.atoms(queries)
    points = rows.x[greedy_choice(process, held_rows(rows.x), num_inducing).index]
    approximate = variational(process, rows, NOISE**2, points)
    posteriors = {
        "exact": exact.condition(process, rows.atoms(), rows.targets, noise.expand(num_rows)),
        "nystrom": nystrom.condition(process, rows, noise, points, "nystrom"),
        "sor": nystrom.condition(process, rows, noise, points, "sor"),
        "variational": approximate.posterior,
    }
    truth = exact.evidence(process, rows.atoms(), rows.targets, noise.expand(num_rows)).value.item()
    numbers: Numbers = {
        "inducing": num_inducing,
        "x": rounded(queries),
        "points": rounded(points),
        "log_evidence": truth,
        "bound": approximate.bound,
    }
    for name, posterior in posteriors.items():
        moments = posterior.row_moments(asked)
        mean, variance = moments.mean[:, 0], moments.variance.reshape(len(queries), -1)[:, 0]
        numbers[name] = {
            "mean": rounded(mean),
            "variance": rounded(variance),
            "least_variance": float(variance.min()),
            "share_negative": float((variance < 0).double().mean()),
        }
    return numbers


def cells(setting: Setting) -> Mapping[str, Cell]:
    """Too few inducing points, and enough."""
    return {
        f"M = {count}, seed {seed}": Cell(run, {"num_rows": 40, "num_inducing": count, "seed": seed}, 0.5)
        for seed in setting.seeds
        for count in (6, 12, 24)
    }


def claims(numbers: Cells) -> list[Claim]:
    """The four worries about Nyström, and what inducing variables make of them."""
    least = {name: min(each[name]["least_variance"] for each in numbers.values()) for name in METHODS}
    few = [each for name, each in numbers.items() if name.startswith("M = 6,")]
    many = [each for name, each in numbers.items() if name.startswith("M = 24,")]
    short = [each["log_evidence"] - each["bound"] for each in (few[0], many[0])]
    difference = max(
        abs(a - b)
        for each in many
        for key in ("mean", "variance")
        for a, b in zip(each["exact"][key], each["variational"][key], strict=True)
    )
    return [
        Claim.of(
            "Nyström: predicted variances can be negative",
            "no number",
            f"least variance {least['nystrom']:.3g}; negative at "
            f"{100 * few[0]['nystrom']['share_negative']:.0f} % of the places with six points",
            least["nystrom"] < 0,
        ),
        Claim.of(
            "Inducing variables are valid posterior approximations",
            "no number",
            f"least variance {least['variational']:.3g}, of the exact posterior {least['exact']:.3g}",
            least["variational"] >= 0,
        ),
        Claim.of(
            "The quality of the approximation is quantified",
            "no number",
            f"the bound is {short[0]:.1f} nats short of the evidence with 6 points, {short[1]:.2g} with 24",
            short[0] > 10 > 1 > short[1],
        ),
        Claim.of(
            "With enough points the exact posterior comes back",
            "no number",
            f"largest difference of means and variances with 24 points: {difference:.1e}",
            difference < 0.02,
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """The variance by all methods, with few points and with more."""
    figure.set_size_inches(12, 3.8)
    shown = [(name, each) for name, each in numbers.items() if name.endswith("seed 0")]
    axes = figure.subplots(1, len(shown), sharey=True)
    for axis, (name, found) in zip(axes, shown, strict=True):
        for method, (label, colour) in METHODS.items():
            axis.plot(found["x"], found[method]["variance"], color=colour, label=label)
        axis.axhspan(-2, 0, color="tab:red", alpha=0.08)
        axis.plot(found["points"], [-0.93] * len(found["points"]), "k^", markersize=4)
        least = cast("float", found["nystrom"]["least_variance"])
        axis.set(ylim=(-1.0, 1.1), xlabel="x", title=f"{name.partition(',')[0]}: Nyström down to {least:.2g}")
    axes[0].set_ylabel("variance of f (▲ inducing points)")
    axes[0].legend(fontsize=8)


RESULT = Result(
    name="talk-nystrom",
    title="Nyström's approximation predicts negative variances; inducing variables do not",
    source="Talk, Nyström and inducing variables",
    printed="Four questions that Nyström leaves open; no numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
)
