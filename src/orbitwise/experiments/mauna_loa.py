"""Mauna Loa CO2: forecasts by the lecture's four components, and twenty years of measurements (Lecture 2.8).

    python -m orbitwise.experiments.mauna_loa --out results/mauna_loa.json

Monthly means to the end of 2003 are the training set, and 2004 to 2023 the test set. The lecture's kernel is
the sum of a long trend, a slowly changing season, irregularities and correlated noise, each with its own
amplitude and lengthscales. Several other trends are tried as well. Nothing is chosen by the test years:
hyperparameters are integrated out by importance sampling, and trends are weighted by their evidence on the
training years (Lecture 2.7). `--end 1984` makes the same forecasts twenty years earlier. A run that was
stopped resumes.

The record has one entry for each first test year. Its "models" are named by their trend, each at the optimum
and with hyperparameters integrated out ("marginalised"); "average" weights all trends by their evidence. Each
has the coverage, error and log density up to each horizon, and the growth per year.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from gpytorch.kernels import Kernel, PeriodicKernel
from numpy.typing import NDArray
from scipy.special import softmax

from orbitwise import datasets
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.experiments.records import Record, command_line
from orbitwise.functionals import Evaluation, Functional, OrbitAverage
from orbitwise.inference.exact import Component, ExactPosterior, components, summands
from orbitwise.kernels import parse, spell
from orbitwise.orbits import FiniteOrbit
from orbitwise.selection.evidence import ImportanceSample, integrate_evidence
from orbitwise.selection.fitted import fitted_hyperparameters
from orbitwise.selection.model_posterior import PredictiveMixture, mixture_of
from orbitwise.transforms.vectors import Translation

Array = NDArray[np.float64]
HORIZONS = (5, 10, 20)
"""Years ahead."""


@final
@dataclass(frozen=True)
class Series:
    """Training and test values, relative to the middle and the mean of the training years."""

    end: int
    origin: float
    shift: float
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array

    @staticmethod
    def of(years: Array, values: Array, end: int = 2004, every: int = 1) -> Series:
        """Split at the beginning of the year `end`; of the training values, one in `every` is kept."""
        is_train = years < end
        kept = np.flatnonzero(is_train)[::every]
        origin, shift = float(np.round(years[kept].mean())), float(values[kept].mean())
        x, y = (years - origin)[:, None], values - shift
        return Series(end, origin, shift, x[kept], y[kept], x[~is_train], y[~is_train])

    @property
    def years_ahead(self) -> Array:
        """The time from the end of the training years to each test value."""
        return self.x_test[:, 0] + self.origin - self.end


def judge(predictor: PredictiveMixture, series: Series) -> dict[str, Any]:
    """Coverage of the 95 % band, error and log density of the test values, up to each horizon.

    The bias is the mean of measured minus predicted over the last year before the horizon.
    """
    x, y, ahead = series.x_test, series.y_test, series.years_ahead
    residual = y - predictor.predict(x)
    low, high = (predictor.quantile(x, level, include_noise=True) for level in (0.025, 0.975))
    inside, density = (low <= y) & (y <= high), predictor.log_density(x, y)
    record: dict[str, Any] = {}
    for horizon in HORIZONS:
        until = ahead < horizon
        if not until.any() or ahead.max() < horizon - 1 / 12:
            continue
        last_year = until & (ahead >= horizon - 1)
        record[str(horizon)] = {
            "months": int(until.sum()),
            "coverage": float(inside[until].mean()),
            "rmse": float(np.sqrt(np.mean(residual[until] ** 2))),
            "log_density": float(density[until].mean()),
            "bias_of_last_year": float(residual[last_year].mean()),
            "band_of_last_year": float((high - low)[last_year].mean()),
        }
    return record


def growth(predictor: PredictiveMixture, series: Series) -> dict[str, float]:
    """The rise per year over the first and the last five years of the horizon, predicted and measured."""
    ahead, rates = series.years_ahead, {}
    for name, values in (("predicted", predictor.predict(series.x_test)), ("measured", series.y_test)):
        annual = [float(values[(ahead >= k) & (ahead < k + 1)].mean()) for k in range(HORIZONS[-1])]
        rates[f"{name}_first"] = (annual[5] - annual[0]) / 5
        rates[f"{name}_last"] = (annual[-1] - annual[-6]) / 5
    return rates


LECTURE = "rbf"
TRENDS = {
    LECTURE: "2500*rbf(lengthscale=50)",
    "rq": "2500*rq(lengthscale=50, alpha=1)",
    "matern52": "2500*matern52(lengthscale=50)",
    "matern32": "2500*matern32(lengthscale=50)",
    "linear + rbf": "linear(variance=1) + 100*rbf(lengthscale=30)",
    "quadratic": "0.0001*polynomial(2, offset=5000)",
    "cubic": "3e-9*polynomial(3, offset=10000)",
    "quadratic + rbf": "0.0001*polynomial(2, offset=5000) + 100*rbf(lengthscale=30)",
}
"""Long trends with starting values, in ppm² and in years from the middle of the training years."""

OTHERS = {
    "season": "4*rbf(lengthscale=100)*periodic(lengthscale=1, period_length=1)",
    "irregularities": "0.5*rq(lengthscale=1, alpha=1)",
    "correlated noise": "0.03*rbf(lengthscale=0.1)",
}
"""The other components of every model. GPyTorch's periodic kernel does not square its lengthscale."""

DIGITS = 12
SPREAD = 1.0
"""Standard deviation of the logarithm of each hyperparameter under its prior, around its start."""


def load(end: int = 2004, every: int = 1) -> Series:
    """The monthly means of Mauna Loa."""
    data = datasets.load("co2_mauna_loa")
    return Series.of(data.x, data.y, end, every)


def spelling_of(trend: str) -> str:
    """The spelling of one trend and all other components, with starting values."""
    return " + ".join([TRENDS[trend], *OTHERS.values()])


def kernel_of(trend: str) -> Kernel:
    """The kernel of one trend and all other components; the season's period stays one year."""
    kernel = parse(spelling_of(trend))
    for module in kernel.modules():
        if isinstance(module, PeriodicKernel):
            module.raw_period_length.requires_grad_(False)
    return kernel


def fit(trend: str, series: Series, num_restarts: int = 0, max_iterations: int = 300) -> InvariantGPRegressor:
    """Learn hyperparameters by evidence, from one or more starts."""
    model = InvariantGPRegressor(
        kernel_of(trend),
        normalize_y=False,
        inference="exact",
        num_restarts=num_restarts,
        max_iterations=max_iterations,
        random_state=0,
    )
    return model.fit(series.x_train, series.y_train)


def decompose(
    model: InvariantGPRegressor, x: Array, functional: Functional | None = None
) -> dict[str, Component]:
    """The posterior of the trend and of every other component at x; their means add up to the prediction.

    With a `functional`, such as `seasonal()`, the posterior is that of this functional of each component.
    """
    *trend, season, irregularities, noise = summands(model.kernel_)
    parts = [sum(trend[1:], trend[0]), season, irregularities, noise]
    rows = (functional or Evaluation()).atoms(torch.from_numpy(x))
    with torch.no_grad():
        assert isinstance(model.posterior_, ExactPosterior)
        found = components(model.posterior_, rows, parts)
    return dict(zip(("trend", *OTHERS), found, strict=True))


def seasonal() -> Functional:
    """f(x) minus the mean of f over the twelve months around x: a constant may belong to any component."""
    months = (torch.arange(12, dtype=torch.float64)[:, None] - 5.5) / 12
    return Evaluation() - OrbitAverage(FiniteOrbit(Translation(1), months))


def marginalise(
    model: InvariantGPRegressor, num_draws: int, num_members: int
) -> tuple[dict[str, Any], PredictiveMixture]:
    """The evidence with hyperparameters integrated out, and predictions averaged over their posterior."""
    fitted = fitted_hyperparameters(model, default_scale=SPREAD)
    with warnings.catch_warnings():
        # the record has is_peak, effective_draws and pareto_shape, which say the same as the warnings
        warnings.simplefilter("ignore", category=UserWarning)
        found = integrate_evidence(fitted.hyperparameters, "importance", num_draws)
    assert isinstance(found.details, ImportanceSample)
    mixture = mixture_of(fitted, found, num_members)
    facts = {
        "log_evidence": found.log_evidence,
        "standard_error": found.standard_error,
        "laplace_log_evidence": found.fit.log_evidence,
        "is_peak": found.fit.is_peak,
        "draws": num_draws,
        "effective_draws": found.details.effective_size,
        "pareto_shape": found.details.pareto_shape,
    }
    return facts, mixture


def described(mixture: PredictiveMixture) -> list[dict[str, Any]]:
    """The members of a mixture as text, from which `rebuilt` makes the mixture without another run."""
    return [
        {"weight": float(weight), "kernel": spell(member.kernel_, True, DIGITS), "noise": member.noise_}
        for member, weight in zip(mixture.members, mixture.weights, strict=True)
    ]


def rebuilt(members: Sequence[dict[str, Any]], series: Series) -> PredictiveMixture:
    """The mixture from its description, conditioned on the training months again."""
    models = [
        InvariantGPRegressor(
            parse(each["kernel"]),
            noise=each["noise"],
            normalize_y=False,
            inference="exact",
            max_iterations=0,
        ).fit(series.x_train, series.y_train)
        for each in members
    ]
    return PredictiveMixture(models, np.array([each["weight"] for each in members]))


def run_model(
    trend: str, series: Series, num_restarts: int, num_draws: int, num_members: int
) -> dict[str, Any]:
    """Run one trend, at the optimum and with hyperparameters integrated out."""
    began = time.perf_counter()
    model = fit(trend, series, num_restarts)
    optimum = PredictiveMixture([model], np.ones(1))
    facts, mixture = marginalise(model, num_draws, num_members)
    shares = {name: part.mean.std().item() for name, part in decompose(model, series.x_train).items()}
    return {
        "optimum": {
            "log_evidence": model.log_evidence_,
            "converged": model.converged_,
            "members": described(optimum),
            "deviations": shares,
            "growth": growth(optimum, series),
            "scores": judge(optimum, series),
        },
        "marginalised": facts
        | {
            "members": described(mixture),
            "growth": growth(mixture, series),
            "scores": judge(mixture, series),
        },
        "seconds": time.perf_counter() - began,
    }


def average(models: dict[str, Any], series: Series) -> dict[str, Any]:
    """The average of all trends, weighted by their evidence with equal prior probabilities."""
    evidence = np.array([each["marginalised"]["log_evidence"] for each in models.values()])
    probabilities = dict(zip(models, softmax(evidence).tolist(), strict=True))
    mixture = averaged(models, probabilities, series)
    return {
        "probabilities": probabilities,
        "growth": growth(mixture, series),
        "scores": judge(mixture, series),
    }


def averaged(models: dict[str, Any], probabilities: dict[str, float], series: Series) -> PredictiveMixture:
    """The mixture of all trends, from their descriptions."""
    parts = {name: rebuilt(models[name]["marginalised"]["members"], series) for name in probabilities}
    weights = [probabilities[name] * part.weights for name, part in parts.items()]
    return PredictiveMixture(
        [member for part in parts.values() for member in part.members], np.concatenate(weights)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, run the trends that are missing, and write the record after each."""
    parser = command_line(__doc__)
    parser.add_argument("--trends", nargs="+", choices=list(TRENDS), default=list(TRENDS))
    parser.add_argument("--end", type=int, default=2004, help="the first year that is not trained on")
    parser.add_argument("--every", type=int, default=1, help="train on every so many months")
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--members", type=int, default=16)
    chosen = parser.parse_args(arguments)
    series = load(chosen.end, chosen.every)
    record = Record(chosen.out, {})
    part = record.values.setdefault(str(chosen.end), {"training_months": len(series.x_train), "models": {}})
    models, settings = part["models"], (series, chosen.restarts, chosen.draws, chosen.members)
    for trend in chosen.trends:
        if record.fill(models, trend, partial(run_model, trend, *settings)):
            print(trend, f"{models[trend]['seconds']:.0f} s", flush=True)
    part["average"] = average(models, series)
    part["restarts"], part["threads"] = chosen.restarts, torch.get_num_threads()
    record.write()


if __name__ == "__main__":
    main()
