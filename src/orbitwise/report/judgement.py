"""The part of the page that judges predictions: numbers with their uncertainty, and figures."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from orbitwise.report.markup import escape, figure, paragraph, section, side_by_side, table
from orbitwise.report.numbers import mean_with_error, number, share, with_error
from orbitwise.report.outcomes import (
    MOST_POINTS,
    confusion_figure,
    coverage_figure,
    predicted_figure,
    reliability_figure,
    residual_figure,
)
from orbitwise.report.predictions import SOURCES, Judged, Labelled, Measured

MOST_OUTPUTS = 3
MOST_MATRIX = 60


def brief_error(judged: Judged) -> str:
    """The error of predictions in a few characters: a share in per cent, or root mean squares."""
    if isinstance(judged, Labelled):
        count, wrong = len(judged.codes), int(judged.is_wrong.sum())
        error = 100 * math.sqrt(max(wrong, 1) * max(count - wrong, 0) / count) / count
        return with_error(100 * wrong / count, error, " %")
    return ", ".join(with_error(*root_mean_square(column)) for column in judged.residuals.T)


def quality(judged: Judged) -> str:
    """One sentence on how good the predictions are."""
    count = len(judged.codes) if isinstance(judged, Labelled) else len(judged.mean)
    which = {"test": "test", "leave-one-out": "held-out training"}.get(judged.source, "training")
    if isinstance(judged, Labelled):
        wrong = int(judged.is_wrong.sum())
        return f"The model errs on {share(wrong, count)} of {count:,} {which} examples."
    return f"Predictions are off by {brief_error(judged)} (root mean square) on {count:,} {which} examples."


def root_mean_square(values: Float[ndarray, " n"]) -> tuple[float, float | None]:
    """√(mean of squares) and its standard error: that of the mean of squares over twice the root."""
    mean, error = mean_with_error(np.square(values))
    root = math.sqrt(mean)
    return root, None if error is None or root == 0 else error / (2 * root)


def judgement_section(judged: Judged, seed: int) -> str:
    """Numbers and figures of the predictions."""
    count = len(judged.codes) if isinstance(judged, Labelled) else len(judged.mean)
    words = paragraph(f"Judged on {count:,} {SOURCES[judged.source]}.")
    pieces = _labelled(judged) if isinstance(judged, Labelled) else _measured(judged, seed)
    return section("judgement", "How good are the predictions?", words, *pieces)


def _labelled(judged: Labelled) -> list[str]:
    count, wrong = len(judged.codes), int(judged.is_wrong.sum())
    mean, error = mean_with_error(100 * judged.probabilities.max(1))
    confidence = with_error(mean, error, " %")
    rows = [
        ["wrong", f"{wrong:,} of {count:,}: {share(wrong, count)}"],
        ["log loss", with_error(*mean_with_error(judged.losses), " nats") + " an example"],
        ["mean confidence", f"{confidence}, and {share(count - wrong, count)} right"],
    ]
    figures = []
    if len(judged.classes) <= MOST_MATRIX:
        figures.append(
            figure(
                confusion_figure(judged),
                "Confusion matrix",
                "Rows are true classes, columns predictions; shades are shares of a row, mistakes orange.",
            )
        )
    figures.append(
        figure(
            reliability_figure(judged),
            "Reliability",
            "On the dashed line confidence is right. Bars are 95 % intervals; larger dots hold more.",
        )
    )
    return [table(["", "estimate"], rows), side_by_side(*figures)]


def _measured(judged: Measured, seed: int) -> list[str]:
    outputs = judged.mean.shape[1]
    rows, pieces = [], []
    for output in range(outputs):
        name = f"output {output}: " if outputs > 1 else ""
        rows += [[name + label, value] for label, value in _numbers(judged, output)]
    for output in range(min(outputs, MOST_OUTPUTS)):
        columns = [part[:, output] for part in (judged.mean, judged.deviation, judged.measured)]
        name = f", output {output}" if outputs > 1 else ""
        some = f" {MOST_POINTS} of {len(judged.mean):,} are drawn." if len(judged.mean) > MOST_POINTS else ""
        figures = (
            figure(
                predicted_figure(*columns, seed=seed),
                f"Predicted and measured{name}",
                f"Bars are one predicted deviation of a new measurement.{some}",
            ),
            figure(
                residual_figure(*columns, seed=seed),
                f"Residuals{name}",
                f"95 % should lie in the grey band; orange ones do not.{some}",
            ),
            figure(
                coverage_figure(judged.scores[:, output]),
                f"Calibration of intervals{name}",
                "On the dashed line intervals hold what they promise, above it they are too wide. The "
                "band is a 95 % interval.",
            ),
        )
        pieces.append(side_by_side(*figures, small=True))
    if outputs > MOST_OUTPUTS:
        pieces.append(
            paragraph(escape(f"Figures of the first {MOST_OUTPUTS} of {outputs} outputs."), "small")
        )
    return [table(["", "estimate"], rows), *pieces]


def _numbers(judged: Measured, output: int) -> list[tuple[str, str]]:
    residuals, scores = judged.residuals[:, output], judged.scores[:, output]
    inside, count = int((np.abs(scores) <= 1.96).sum()), len(scores)
    loss = 0.5 * np.square(scores) + np.log(
        np.maximum(judged.deviation[:, output], 1e-300) * math.sqrt(2 * math.pi)
    )
    spread = float(np.std(judged.measured[:, output]))
    root, error = root_mean_square(residuals)
    relative = f", beside a spread of the targets of {number(spread)}"
    return [
        ("root mean square error", with_error(root, error) + relative),
        ("mean absolute error", with_error(*mean_with_error(np.abs(residuals)))),
        ("in the 95 % interval", share(inside, count)),
        ("negative log density", with_error(*mean_with_error(loss), " nats") + " an example"),
    ]
