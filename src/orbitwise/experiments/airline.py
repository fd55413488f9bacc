"""Airline passengers: an RBF kernel compared with spectral mixtures on the last third (Lecture 1, figure 1).

    python -m orbitwise.experiments.airline --out results/airline.json

The logarithm of monthly passengers, 1949 to 1956, is the training set; 1957 to 1960 is the test set. The
optimiser finds another optimum from almost every start, so both kernels have many starts: several
lengthscales for the RBF; for spectral mixtures, several numbers of components, each started at the empirical
spectrum and at random shifts of it. The start is chosen by the evidence of the training years; all other
outcomes are in the record, too.

The record has "fits", by the name of the start: the evidence, the learned kernel, and errors on the last
third. "summary" holds, for each kind of kernel, the start that evidence prefers, the one that BIC prefers,
and the one that hindsight would have preferred; "ratio" is the error of the spectral mixture over that of the
RBF kernel, both chosen by evidence.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray
from scipy.stats import norm

from orbitwise import datasets
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.experiments.records import Record, command_line
from orbitwise.kernels import parse, spectral_mixture, spell

LENGTHSCALES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
NUM_MIXTURES = tuple(range(2, 11))
SEEDS = 3
DIGITS = 12


class Series(NamedTuple):
    """Years since the first month, and passengers in thousands, split after the first two thirds."""

    x_train: NDArray[np.float64]
    passengers_train: NDArray[np.float64]
    x_test: NDArray[np.float64]
    passengers_test: NDArray[np.float64]

    @property
    def y_train(self) -> NDArray[np.float64]:
        """The training targets: logarithms, because the seasons grow with the trend."""
        return np.log(self.passengers_train)


@runtime_checkable
class Predictor(Protocol):
    """A model that predicts logarithms of passengers with a standard deviation."""

    def predict(
        self, X: NDArray[np.float64], *, return_std: bool, include_noise: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...


def load() -> Series:
    """The series of Box and Jenkins."""
    data = datasets.load("airline_passengers")
    x, split = (data.x - data.x[0])[:, None], 2 * len(data.x) // 3
    return Series(x[:split], data.y[:split], x[split:], data.y[split:])


def starts(series: Series, num_mixtures: Sequence[int], num_seeds: int) -> dict[str, Kernel]:
    """The kernels to start from, by name; "spectrum" is the empirical spectrum without a random shift."""
    kernels: dict[str, Kernel] = {
        f"rbf, lengthscale {length:g}": parse(f"rbf(lengthscale={length})") for length in LENGTHSCALES
    }
    for count in num_mixtures:
        for seed in (None, *range(num_seeds)):
            name = "spectrum" if seed is None else f"seed {seed}"
            kernels[f"sm({count}), {name}"] = spectral_mixture(series.x_train, series.y_train, count, seed)
    return kernels


def fit(kernel: Kernel, series: Series, max_iterations: int) -> InvariantGPRegressor:
    """Learn hyperparameters by evidence from one start."""
    model = InvariantGPRegressor(kernel, inference="exact", max_iterations=max_iterations, random_state=0)
    return model.fit(series.x_train, series.y_train)


def judge(predictor: Predictor, series: Series) -> dict[str, float]:
    """Errors on the last third.

    "rmse" is that of logarithms, "rmse_passengers" that of thousands of passengers; "coverage" is the share
    of months inside the 95 % band, and "log_density" the mean log density of the logarithms.
    """
    mean, deviation = predictor.predict(series.x_test, return_std=True, include_noise=True)
    y = np.log(series.passengers_test)
    residual = y - mean
    return {
        "rmse": float(np.sqrt(np.mean(residual**2))),
        # the median of a log-normal prediction is the exponential of its mean
        "rmse_passengers": float(np.sqrt(np.mean((series.passengers_test - np.exp(mean)) ** 2))),
        "coverage": float(np.mean(np.abs(residual) <= norm.ppf(0.975) * deviation)),
        "log_density": float(norm.logpdf(y, mean, deviation).mean()),
    }


def run_start(kernel: Kernel, series: Series, max_iterations: int) -> dict[str, Any]:
    """Fit from one start, and measure the errors."""
    began = time.perf_counter()
    model = fit(kernel, series, max_iterations)
    num_parameters = 1 + sum(each.numel() for each in model.kernel_.parameters())
    return {
        "log_evidence": model.log_evidence_,
        "bic": model.log_evidence_ - 0.5 * num_parameters * math.log(len(series.x_train)),
        "converged": model.converged_,
        "iterations": len(model.history_),
        "kernel": spell(model.kernel_, True, DIGITS),
        "noise": model.noise_,
        **judge(model, series),
        "seconds": time.perf_counter() - began,
    }


def summarise(fits: dict[str, Any]) -> dict[str, Any]:
    """The best start of each kernel by the training years, and by hindsight."""
    kinds = {
        kind: {name: each for name, each in fits.items() if name.startswith(kind)} for kind in ("rbf", "sm")
    }
    summary: dict[str, Any] = {}
    for kind, group in kinds.items():
        by_evidence, by_bic = (
            max(group, key=lambda name: group[name][key]) for key in ("log_evidence", "bic")
        )
        hindsight = min(group, key=lambda name: group[name]["rmse"])
        summary[kind] = {
            "by_evidence": {"start": by_evidence, **_errors(group[by_evidence])},
            "by_bic": {"start": by_bic, **_errors(group[by_bic])},
            "least_error": {"start": hindsight, **_errors(group[hindsight])},
            "median_rmse": float(np.median([each["rmse"] for each in group.values()])),
        }
    unmoved = {name: each for name, each in kinds["sm"].items() if name.endswith("spectrum")}
    if unmoved:
        best = max(unmoved, key=lambda name: unmoved[name]["log_evidence"])
        summary["sm"]["by_evidence_from_spectrum"] = {"start": best, **_errors(unmoved[best])}
    limit = 0.5 * summary["rbf"]["by_evidence"]["rmse"]
    mixtures = [each["rmse"] for each in kinds["sm"].values()]
    summary["ratio"] = summary["sm"]["by_evidence"]["rmse"] / summary["rbf"]["by_evidence"]["rmse"]
    summary["ratio_to_least_error_of_rbf"] = (
        summary["sm"]["by_evidence"]["rmse"] / summary["rbf"]["least_error"]["rmse"]
    )
    summary["share_of_starts_that_halve"] = float(np.mean([rmse <= limit for rmse in mixtures]))
    return summary


def _errors(outcome: dict[str, Any]) -> dict[str, float]:
    keys = ("log_evidence", "rmse", "rmse_passengers", "coverage", "log_density")
    return {key: outcome[key] for key in keys}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, run the starts that are missing, and write the record after each."""
    parser = command_line(__doc__)
    parser.add_argument("--mixtures", nargs="+", type=int, default=list(NUM_MIXTURES))
    parser.add_argument("--seeds", type=int, default=SEEDS, help="random starts in addition to the spectrum")
    parser.add_argument("--iterations", type=int, default=500)
    chosen = parser.parse_args(arguments)
    series, record = load(), Record(chosen.out, {"fits": {}})
    fits = record.values["fits"]
    for name, kernel in starts(series, chosen.mixtures, chosen.seeds).items():
        if record.fill(fits, name, partial(run_start, kernel, series, chosen.iterations)):
            print(name, f"rmse {fits[name]['rmse']:.3f}", flush=True)
    settings = {"training_months": len(series.x_train), "threads": torch.get_num_threads()}
    record.write(**settings, summary=summarise(fits))


if __name__ == "__main__":
    main()
