"""Lecture figure 1: airline passengers extrapolated by an RBF kernel and by a spectral mixture."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from orbitwise import datasets
from orbitwise.experiments.airline import LENGTHSCALES, Series, fit, judge, load, starts
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting

KINDS = {"rbf": ("RBF kernel", "tab:red"), "sm": ("spectral mixture", "black")}


def made() -> Series:
    """Growth with seasons that grow with it, where the real series cannot be had."""
    months, rng = np.arange(144), np.random.default_rng(0)
    season = 0.15 * np.sin(2 * np.pi * months / 12) + 0.08 * np.cos(2 * np.pi * months / 6)
    passengers = np.exp(4.8 + 0.01 * months + season + 0.03 * rng.normal(size=144))
    x, split = (months / 12)[:, None], 96
    return Series(x[:split], passengers[:split], x[split:], passengers[split:])


def run(
    data: str, start: str, mixtures: list[int], num_seeds: int, max_iterations: int, device: str
) -> Numbers:
    """The fit from one start: evidence of the first two thirds, errors on the last, and the forecast."""
    series = made() if data == "made" else load()
    model = fit(starts(series, mixtures, num_seeds)[start], series, max_iterations)
    x = np.concatenate([series.x_train, series.x_test])
    mean, deviation = model.predict(x, return_std=True, include_noise=True)
    return {
        "kind": start.partition("(")[0].partition(",")[0],
        "log_evidence": model.log_evidence_,
        **judge(model, series),
        "years": x[:, 0].round(4).tolist(),
        "passengers": np.concatenate([series.passengers_train, series.passengers_test]).round(1).tolist(),
        "mean": np.exp(mean).round(2).tolist(),
        "low": np.exp(mean - 2 * deviation).round(2).tolist(),
        "high": np.exp(mean + 2 * deviation).round(2).tolist(),
        "training": len(series.x_train),
    }


def cells(setting: Setting) -> Mapping[str, Cell]:
    """One cell for every start; the seeds are random starts of the mixtures."""
    name = "airline_passengers"
    here = any(each.name == name and each.where == "ORBITWISE_DATA" for each in datasets.available())
    data = name if setting.scale == "full" or (setting.scale == "cpu" and here) else "made"
    mixtures = setting.pick([2], [3, 4, 6], list(range(2, 11)))
    lengthscales = setting.pick(LENGTHSCALES[2:3], LENGTHSCALES[1::2], LENGTHSCALES)
    names = [f"rbf, lengthscale {length:g}" for length in lengthscales]
    unmoved = [f"sm({count}), spectrum" for count in mixtures]
    moved = (
        []
        if setting.scale == "tiny"
        else [f"sm({count}), seed {seed}" for seed in setting.seeds for count in mixtures]
    )
    options = {
        "data": data,
        "mixtures": mixtures,
        "num_seeds": setting.num_seeds,
        "max_iterations": setting.pick(15, 200, 500),
    }
    return {
        start: Cell(
            run,
            {**options, "start": start, "num_seeds": _seeds(start)},
            setting.pick(1.0, 8.0, 15.0),
            () if data == "made" else (data,),
        )
        for start in (*names, *unmoved, *moved)
    }


def _seeds(start: str) -> int:
    """How many random starts must be made for this one to be among them."""
    return int(start.rpartition(" ")[2]) + 1 if ", seed " in start else 0


def chosen(numbers: Cells, kind: str) -> Numbers:
    """The start of a kind with the most evidence of the training months."""
    return max(
        (each for each in numbers.values() if each["kind"] == kind), key=lambda each: each["log_evidence"]
    )


def claims(numbers: Cells) -> list[Claim]:
    """What the caption and section 1 say."""
    rbf, mixture = chosen(numbers, "rbf"), chosen(numbers, "sm")
    others = [each["rmse"] for each in numbers.values() if each["kind"] == "sm"]
    least = min(each["rmse"] for each in numbers.values() if each["kind"] == "rbf")
    return [
        Claim.of(
            "The spectral mixture is very close to the truth where the RBF kernel, which is smooth, is not",
            "a picture",
            f"error of the log of passengers {mixture['rmse']:.3f} and {rbf['rmse']:.3f}, in thousands "
            f"{mixture['rmse_passengers']:.0f} and {rbf['rmse_passengers']:.0f}; starts chosen by the "
            "evidence",
            mixture["rmse"] < 0.5 * rbf["rmse"],
        ),
        Claim.of(
            "No start of the RBF kernel forecasts as well",
            "not said",
            f"the best one in hindsight has {least:.3f}; mixtures reach {np.median(others):.3f} in the "
            "median "
            f"of {len(others)} starts",
            mixture["rmse"] < least,
        ),
        Claim.of(
            "The evidence of the training months prefers the mixture",
            "not said",
            f"{mixture['log_evidence']:.1f} and {rbf['log_evidence']:.1f} nats",
            mixture["log_evidence"] > rbf["log_evidence"],
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """Both forecasts, the training months and what came."""
    figure.set_size_inches(8, 4)
    axis = figure.subplots()
    for kind, (label, colour) in KINDS.items():
        found = chosen(numbers, kind)
        axis.plot(found["years"], found["mean"], color=colour, label=label)
        axis.fill_between(found["years"], found["low"], found["high"], color=colour, alpha=0.12, linewidth=0)
    first = next(iter(numbers.values()))
    years, count, truth = first["years"], first["training"], first["passengers"]
    axis.plot(years[:count], truth[:count], color="tab:blue", linewidth=2, label="training months")
    axis.plot(years[count:], truth[count:], color="tab:green", linewidth=2, label="what came")
    axis.set(ylim=(0, 1.6 * max(truth)), xlabel="years", ylabel="thousands of passengers")
    axis.legend(fontsize=8)


RESULT = Result(
    name="lecture-airline",
    title="Passengers forecast by an RBF kernel and by a spectral mixture",
    source="Lecture, figure 1",
    printed="A picture: the mixture in black is close to the truth in green, the RBF kernel in red is not.",
    cells=cells,
    claims=claims,
    draw=draw,
)
