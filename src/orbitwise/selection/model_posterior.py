"""p(H | y) over a list of models, and predictions averaged over models or hyperparameters (Lecture 1.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, final, overload, runtime_checkable

import numpy as np
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax
from scipy.stats import norm
from sklearn.base import BaseEstimator
from torch.distributions import Distribution

from orbitwise.estimators.convergence import fit_quietly, warn_of_shortfalls
from orbitwise.estimators.features import unfitted_copy
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.selection.compare import is_tie
from orbitwise.selection.evidence import (
    METHODS,
    EvidenceEstimate,
    Sampler,
    integrate_evidence,
)
from orbitwise.selection.fitted import FittedHyperparameters, fitted_hyperparameters
from orbitwise.selection.table import ResultTable

Model = BaseEstimator | Kernel

LIGHTEST = 1e-12
"""Members with less weight than this are ignored."""

Array = NDArray[np.float64]
Prediction = Array | tuple[Array, Array]
"""The mean per row, or mean and standard deviation."""


@runtime_checkable
class Predictor(Protocol):
    """A fitted regressor, or a mixture of regressors."""

    def predict(self, X: ArrayLike, return_std: bool = False, *, include_noise: bool = True) -> Prediction:
        """The mean of new targets and, if asked for, their standard deviation."""
        ...


@final
@dataclass(frozen=True)
class PredictiveMixture:
    """A weighted mixture of fitted regressors.

    Parameters
    ----------
    members : sequence of regressors
        Fitted regressors, or mixtures of regressors.
    weights : array of shape (members,)
        Non-negative weights; they are scaled to a sum of 1.
    """

    members: Sequence[Any]
    weights: Array

    def __post_init__(self) -> None:
        if len(self.members) != len(self.weights) or not len(self.members):
            raise ValueError(f"{len(self.members)} members need as many weights, not {len(self.weights)}.")
        if not (np.isfinite(self.weights).all() and (self.weights >= 0).all() and self.weights.sum() > 0):
            raise ValueError("Weights must be finite, not negative, and not all zero.")
        object.__setattr__(self, "weights", np.asarray(self.weights, float) / self.weights.sum())

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[False] = False, include_noise: bool = True
    ) -> Array: ...

    @overload
    def predict(self, X: ArrayLike, return_std: bool = False, include_noise: bool = True) -> Prediction: ...

    def predict(self, X: ArrayLike, return_std: bool = False, include_noise: bool = True) -> Prediction:
        """The mean of new targets and their standard deviation, or with `include_noise=False` that of f."""
        weights, means, deviations = self._predictions(X, include_noise)
        # Σ w m, and Σ w s² + Σ w (m - mean)²
        mean = np.tensordot(weights, means, 1)
        if not return_std:
            return mean
        variance = np.tensordot(weights, deviations**2 + (means - mean) ** 2, 1)
        return mean, np.sqrt(variance)

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Array:
        """log p(y_i | x_i, data) for each new target, under a mixture of normals."""
        targets = np.asarray(y, dtype=float)
        weights, means, deviations = self._predictions(X, include_noise=True)
        if targets.shape != means.shape[1:]:
            raise ValueError(f"Predictions have shape {means.shape[1:]}, but y has {targets.shape}.")
        each = norm.logpdf(targets, means, deviations)
        with np.errstate(divide="ignore"):
            logarithms = np.log(weights).reshape(-1, *[1] * targets.ndim)
        return np.asarray(logsumexp(each + logarithms, axis=0))

    def quantile(self, X: ArrayLike, level: float, include_noise: bool = True) -> Array:
        """A quantile of a new target per row, or without noise of f: 0.025 and 0.975 bound a 95 % band."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, not {level}.")
        weights, means, deviations = self._predictions(X, include_noise)
        deviations = np.maximum(deviations, 1e-300)
        each = means + norm.ppf(level) * deviations
        low, high = each.min(0), each.max(0)
        for _ in range(60):
            middle = (low + high) / 2
            below = np.tensordot(weights, norm.cdf((middle - means) / deviations), 1) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    def _predictions(self, X: ArrayLike, include_noise: bool) -> tuple[Array, Array, Array]:
        """Weights, means and standard deviations of all members with a weight above `LIGHTEST`."""
        kept = [i for i, weight in enumerate(self.weights) if weight > LIGHTEST]
        pairs = [self.members[i].predict(X, return_std=True, include_noise=include_noise) for i in kept]
        means, deviations = (np.stack(each) for each in zip(*pairs, strict=True))
        return self.weights[kept] / self.weights[kept].sum(), means, deviations


def average_hyperparameters(
    estimator: InvariantGPRegressor,
    num_samples: int = 32,
    method: str = "importance",
    priors: Mapping[str, Distribution] | None = None,
    num_draws: int = 1000,
    seed: int = 0,
    sampler: Sampler | None = None,
) -> PredictiveMixture:
    """A mixture of the fitted regressor at `num_samples` values of its hyperparameters from their posterior.

    "importance" draws `num_draws` values around the mode and resamples them by their weights. "nuts" draws as
    many samples by chains and takes evenly spaced ones. Each distinct value costs one factorisation now and
    none when predicting. Hyperpriors are as in `hyperparameters_of`.
    """
    if method not in ("importance", "nuts"):
        raise ValueError(f"method must be 'importance' or 'nuts', not {method!r}.")
    if not 1 <= num_samples <= num_draws:
        raise ValueError(f"num_samples={num_samples} must lie between 1 and num_draws={num_draws}.")
    fitted = fitted_hyperparameters(estimator, priors)
    found = integrate_evidence(
        fitted.hyperparameters, "importance" if method == "importance" else "bridge", num_draws, seed, sampler
    )
    return mixture_of(fitted, found, num_samples, seed)


def mixture_of(
    fitted: FittedHyperparameters, found: EvidenceEstimate, num_samples: int, seed: int = 0
) -> PredictiveMixture:
    """The mixture over draws of hyperparameters from which the evidence was estimated."""
    points, counts = found.resampled(num_samples, seed)
    return PredictiveMixture([fitted.regressor(point) for point in points], counts / counts.sum())


@final
@dataclass(frozen=True)
class ModelEvidenceEntry:
    """One fitted model with its posterior probability and its log evidence; an error of None is unknown."""

    name: str
    probability: float
    probability_error: float
    log_evidence: float
    standard_error: float | None
    prior: float
    estimator: BaseEstimator
    predictor: Predictor


@final
@dataclass(frozen=True)
class ModelPosterior:
    """Models ranked by their posterior probability, and predictions averaged over them.

    Attributes
    ----------
    models : tuple of ModelEvidenceEntry
        The models with their probabilities p(H | y) and evidence.
    method : str
        How the evidence was found; see `model_posterior`.
    """

    models: tuple[ModelEvidenceEntry, ...]
    method: str

    @property
    def best(self) -> ModelEvidenceEntry:
        """The most probable model."""
        return self.models[0]

    @property
    def probabilities(self) -> dict[str, float]:
        """p(H | y) by name."""
        return {model.name: model.probability for model in self.models}

    @property
    def tied(self) -> tuple[str, ...]:
        """Models that tie with the best: odds below three to one, or within two standard errors."""
        return tuple(model.name for model in self.models[1:] if self._ties(model))

    def mixture(self) -> PredictiveMixture:
        """All models weighted by their probabilities."""
        members = [model.predictor for model in self.models]
        return PredictiveMixture(members, np.array([model.probability for model in self.models]))

    def predict(self, X: ArrayLike, return_std: bool = False, include_noise: bool = True) -> Prediction:
        """Bayesian model averaging: the mean and standard deviation of new targets, or of f."""
        return self.mixture().predict(X, return_std, include_noise)

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Array:
        """log p(y_i | x_i, data) of new targets, averaged over models."""
        return self.mixture().log_density(X, y)

    def table(self) -> ResultTable:
        """The posterior as a table."""
        headings = ("model", "probability", "log evidence", "odds of the best")
        table = ResultTable(f"Models by posterior probability (evidence: {self.method})", headings)
        for model in self.models:
            name = f"{model.name} (tie)" if model.name in self.tied else model.name
            evidence = f"{model.log_evidence:,.2f}"
            evidence += f" ± {model.standard_error:,.2f}" if model.standard_error else ""
            probability = f"{100 * model.probability:.3g} %"
            probability += f" ± {100 * model.probability_error:.1g}" if model.probability_error else ""
            table.add_row(name, probability, evidence, _odds(self._score(self.best) - self._score(model)))
        return table

    def __str__(self) -> str:
        return str(self.table())

    def _score(self, model: ModelEvidenceEntry) -> float:
        return model.log_evidence + (math.log(model.prior) if model.prior else -math.inf)

    def _ties(self, model: ModelEvidenceEntry) -> bool:
        error = math.hypot(self.best.standard_error or 0.0, model.standard_error or 0.0)
        return is_tie(self._score(self.best) - self._score(model), error)


def model_posterior(
    models: Sequence[Model] | Mapping[str, Model],
    X: ArrayLike,
    y: ArrayLike,
    prior: Sequence[float] | Mapping[str, float] | None = None,
    method: str = "laplace",
    hyperpriors: Mapping[str, Mapping[str, Distribution]] | None = None,
    num_samples: int = 1000,
    num_members: int = 16,
    seed: int = 0,
) -> ModelPosterior:
    """Fit each model and weight it by its evidence: p(H | y) ∝ p(y | H) p(H).

    Parameters
    ----------
    models : sequence or mapping of str to estimators or kernels
        The models; a kernel means an `InvariantGPRegressor` with this kernel.
    X, y : array-like
        The data.
    prior : sequence or mapping of str to float, default=None
        p(H), scaled to a sum of 1; None makes all models equally probable.
    method : {"laplace", "optimum", "importance", "bridge", "thermodynamic"}, default="laplace"
        "optimum" takes the evidence at the best hyperparameters, which favours models with many of them, but
        works for any estimator with `log_evidence_`. The other methods integrate the hyperparameters of exact
        regressors out (`integrate_evidence`).
    hyperpriors : mapping of str to mappings, default=None
        Hyperpriors as `hyperpriors[model][parameter]`. Other parameters have the hyperpriors that are
        registered on the kernel, or default ones.
    num_samples : int, default=1000
        Draws for the evidence of each model.
    num_members : int, default=16
        The number of hyperparameter values over which "importance" and "bridge" average the predictions of
        each model; the other methods predict at the optimum.
    seed : int, default=0
        Seeds all draws.

    Returns
    -------
    ModelPosterior
        The models, the most probable first; its predictions are averaged over them.
    """
    named = _named(models)
    if method not in ("optimum", *METHODS):
        raise ValueError(f"method must be one of optimum, {', '.join(METHODS)}, not {method!r}.")
    for name in hyperpriors or {}:
        if name not in named:
            raise ValueError(f"hyperpriors names {name!r}, but the models are {', '.join(named)}.")
    chances = _prior(prior, list(named))
    rows = []
    for name, model in named.items():
        fitted = fit_quietly(unfitted_copy(model), X, y)
        own = (hyperpriors or {}).get(name)
        rows.append((fitted, *_judged(fitted, method, own, num_samples, num_members, seed)))
    warn_of_shortfalls(list(named), [row[0] for row in rows])
    scores = np.array([value for _, value, _, _ in rows]) + np.log(np.maximum(chances, 1e-300))
    scores[chances == 0] = -np.inf
    errors = np.array([error or 0.0 for _, _, error, _ in rows])
    probabilities = softmax(scores)
    draws = np.random.default_rng(seed).normal(size=(2000, len(rows)))
    spread = softmax(scores + errors * draws, axis=1).std(0) if errors.any() else np.zeros(len(rows))
    entries = [
        ModelEvidenceEntry(name, float(p), float(s), value, error, float(chance), fitted, predictor)
        for name, p, s, chance, (fitted, value, error, predictor) in zip(
            named, probabilities, spread, chances, rows, strict=True
        )
    ]
    return ModelPosterior(tuple(sorted(entries, key=lambda entry: -entry.probability)), method)


def _judged(
    estimator: BaseEstimator,
    method: str,
    priors: Mapping[str, Distribution] | None,
    num_samples: int,
    num_members: int,
    seed: int,
) -> tuple[float, float | None, Predictor]:
    """The log evidence of a fitted model, its standard error, and the regressor or mixture that predicts."""
    over_nodes = getattr(estimator, "log_evidence_error_", 0.0)
    if method == "optimum":
        value = getattr(estimator, "log_evidence_", None)
        if value is None or not isinstance(estimator, Predictor):
            raise ValueError(
                f"{type(estimator).__name__} has no log_evidence_, by which models are weighted: use a "
                "Gaussian process."
            )
        return value, over_nodes, estimator
    fitted = fitted_hyperparameters(estimator, priors)
    found = integrate_evidence(fitted.hyperparameters, method, num_samples, seed)
    error = found.standard_error
    error = (over_nodes or None) if error is None else math.hypot(error, over_nodes)
    averaged = method in ("importance", "bridge") and len(found.fit.mode) > 0
    predictor = mixture_of(fitted, found, num_members, seed) if averaged else fitted.estimator
    return found.log_evidence, error, predictor


def _named(models: Sequence[Model] | Mapping[str, Model]) -> dict[str, BaseEstimator]:
    if not len(models):
        raise ValueError("model_posterior needs at least one model.")
    if not isinstance(models, Mapping):
        names = [type(model).__name__ for model in models]
        models = {
            name if names.count(name) == 1 else f"{name} {i + 1}": model
            for i, (name, model) in enumerate(zip(names, models, strict=True))
        }
    return {
        name: InvariantGPRegressor(model) if isinstance(model, Kernel) else model
        for name, model in models.items()
    }


def _prior(prior: Sequence[float] | Mapping[str, float] | None, names: list[str]) -> Array:
    if prior is None:
        return np.full(len(names), 1 / len(names))
    if isinstance(prior, Mapping):
        if set(prior) != set(names):
            raise ValueError(f"prior names {', '.join(prior)}, but the models are {', '.join(names)}.")
        prior = [prior[name] for name in names]
    chances = np.asarray(prior, dtype=float)
    if (
        chances.shape != (len(names),)
        or not np.isfinite(chances).all()
        or (chances < 0).any()
        or not chances.any()
    ):
        raise ValueError(
            f"prior needs {len(names)} finite numbers, none negative and not all zero, but it is {prior}."
        )
    return chances / chances.sum()


def _odds(difference: float) -> str:
    if difference == 0:
        return "1"
    if math.isinf(difference):
        return "∞"
    if difference > math.log(1e7):
        return f"10^{difference / math.log(10):,.0f} : 1"
    return f"{math.exp(difference):,.{0 if difference > math.log(10) else 1}f} : 1"
