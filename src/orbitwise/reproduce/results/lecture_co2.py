"""Lecture 2.8: CO2 at Mauna Loa by a sum of four kernels, and twenty years that came after."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from orbitwise import datasets
from orbitwise.experiments.mauna_loa import (
    LECTURE,
    TRENDS,
    Series,
    average,
    averaged,
    decompose,
    fit,
    load,
    rebuilt,
    run_model,
)
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting

SPLITS = (2004, 1984)


def series_of(data: str, end: int, every: int) -> Series:
    """The monthly means, or a made-up series with a bent trend and seasons."""
    if data != "made":
        return load(end, every)
    years, rng = np.arange(1958, 2024, 1 / 12), np.random.default_rng(0)
    since = years - 1958
    values = (
        315
        + 0.8 * since
        + 0.012 * since**2
        + 3 * np.sin(2 * np.pi * years)
        + 0.3 * rng.normal(size=len(years))
    )
    return Series.of(years, values, end, every)


def run(
    data: str, end: int, every: int, trends: list[str], restarts: int, draws: int, members: int, device: str
) -> Numbers:
    """All trends trained to one year, and their average by evidence."""
    series = series_of(data, end, every)
    models = {trend: run_model(trend, series, restarts, draws, members) for trend in trends}
    mean = average(models, series)
    probabilities = mean["probabilities"]
    mixture = averaged(models, probabilities, series)
    x = np.concatenate([series.x_train[-120 // every :], series.x_test])
    forecasts = {"average": mixture, LECTURE: rebuilt(models[LECTURE]["marginalised"]["members"], series)}
    bands = {
        name: [each.round(2).tolist() for each in (
            predictor.predict(x) + series.shift,
            predictor.quantile(x, 0.025, include_noise=True) + series.shift,
            predictor.quantile(x, 0.975, include_noise=True) + series.shift,
        )]
        for name, predictor in forecasts.items()
    }  # fmt: skip
    parts = decompose(fit(LECTURE, series), series.x_train)
    return {
        "end": end,
        "months": len(series.x_train),
        "scores": {name: model["marginalised"]["scores"] for name, model in models.items()},
        "average": mean,
        "spread": {name: part.mean.std().item() for name, part in parts.items()},
        "years": (x[:, 0] + series.origin).round(4).tolist(),
        "measured": (np.concatenate([series.y_train[-120 // every :], series.y_test]) + series.shift)
        .round(2)
        .tolist(),
        "bands": bands,
    }


def cells(setting: Setting) -> Mapping[str, Cell]:
    """One cell for every first test year."""
    name = "co2_mauna_loa"
    here = any(each.name == name and each.where == "ORBITWISE_DATA" for each in datasets.available())
    data = name if setting.scale == "full" or (setting.scale == "cpu" and here) else "made"
    some = [LECTURE, "linear + rbf", "quadratic"]
    options = {
        "data": data,
        "every": setting.pick(5, 6, 1),
        "trends": setting.pick([LECTURE], some, list(TRENDS)),
        "restarts": setting.pick(0, 0, 1),
        "draws": setting.pick(50, 60, 400),
        "members": setting.pick(2, 6, 16),
    }
    splits = setting.pick(SPLITS[:1], SPLITS, SPLITS)
    used = () if data == "made" else (data,)
    seconds = setting.pick(3.0, 60.0, 900.0)
    return {f"to {end}": Cell(run, {"end": end, **options}, seconds, used) for end in splits}


def claims(numbers: Cells) -> list[Claim]:
    """What section 2.8 shows, judged by what was measured afterwards."""
    found = []
    for name, each in numbers.items():
        scores, mean = each["scores"][LECTURE], each["average"]["scores"]
        horizon = max(scores, key=int)
        ours, lecture = mean[horizon], scores[horizon]
        found.append(
            Claim.of(
                f"{name}: the confidence region holds what came",
                "a picture with a 95 % region",
                f"{100 * lecture['coverage']:.0f} % of {lecture['months']} months in {horizon} years "
                "are inside "
                f"the lecture's (average of trends: {100 * ours['coverage']:.0f} %)",
                lecture["coverage"] >= 0.9,
                "hyperparameters and trend are less certain than one kernel says",
            )
        )
        wider = [scores[years]["band_of_last_year"] for years in sorted(scores, key=int)]
        found.append(
            Claim.of(
                f"{name}: the region gets wider the further it is extrapolated",
                "a picture",
                ", ".join(
                    f"{width:.1f} ppm after {years} years"
                    for years, width in zip(sorted(scores, key=int), wider, strict=True)
                ),
                wider == sorted(wider),
            )
        )
        found.append(
            Claim.of(
                f"{name}: an average of trends by their evidence forecasts better than the lecture's trend",
                "not tried (Lecture 2.7 has the formula)",
                f"error {ours['rmse']:.2f} and {lecture['rmse']:.2f} ppm, log density "
                f"{ours['log_density']:.2f} "
                f"and {lecture['log_density']:.2f} over {horizon} years",
                ours["rmse"] <= lecture["rmse"] and ours["log_density"] >= lecture["log_density"],
                "the trend with the most evidence on the training years is not the one that went on",
            )
        )
        spread = each["spread"]
        found.append(
            Claim.of(
                f"{name}: rising trend and seasons are told apart",
                "a picture",
                "deviations of the parts: "
                + ", ".join(f"{key} {value:.2f}" for key, value in spread.items()),
                spread["trend"] > spread["season"] > 1,
            )
        )
    return found


def draw(numbers: Cells, figure: Figure) -> None:
    """Forecasts with their 95 % regions, and what was measured."""
    figure.set_size_inches(6 * len(numbers), 4)
    axes = figure.subplots(1, len(numbers), squeeze=False)[0]
    for axis, (name, each) in zip(axes, numbers.items(), strict=True):
        for (label, (mean, low, high)), colour in zip(
            each["bands"].items(), ("tab:blue", "tab:red"), strict=False
        ):
            axis.plot(each["years"], mean, color=colour, linewidth=1, label=label)
            axis.fill_between(each["years"], low, high, color=colour, alpha=0.15, linewidth=0)
        axis.plot(each["years"], each["measured"], "k.", markersize=2, label="measured")
        axis.axvline(each["end"], color="grey", linestyle="--", linewidth=0.8)
        axis.set(title=f"trained {name}", xlabel="year", ylabel="CO2, ppm")
        axis.legend(fontsize=8)


RESULT = Result(
    name="lecture-co2",
    title="CO2 at Mauna Loa forecast for twenty years by a sum of kernels",
    source="Lecture 2.8",
    printed="A picture of the data to 2003 with a 95 % region for 20 years; no numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
)
