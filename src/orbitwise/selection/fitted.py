"""The hyperparameters of a fitted regressor: kernel, mean, noise, and the bounds of its orbit.

Default hyperpriors are centred at the *start* of the fit, at the scale of the data. Centred at the optimum
they would use the targets twice.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.distributions import Distribution

from orbitwise.estimators.invariances import functional_of
from orbitwise.estimators.regression_model import NOISE_START, RegressionModel, prepare
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.estimators.validation import input_shape
from orbitwise.functionals.averages import features_of, freeze_functional
from orbitwise.functionals.points import FeatureMap
from orbitwise.inference.exact import ExactPosterior
from orbitwise.inference.optimise.hyperparameters import Hyperparameters, NamedParameter
from orbitwise.inference.optimise.hyperpriors import DEFAULT_SCALE
from orbitwise.inference.stored_rows import held_rows
from orbitwise.likelihoods.gaussian import NOISE_FLOOR
from orbitwise.likelihoods.likelihood import Likelihood


@final
@dataclass(frozen=True)
class ModelEvidence:
    """log p(y | θ) of a regression model for the original targets, without hyperpriors."""

    model: RegressionModel

    def __call__(self) -> Tensor:
        # p(y) = p(standardised y) / scale, for every row and output
        return self.model.exact.evidence() - self.model.log_unit


@final
@dataclass(frozen=True)
class FittedHyperparameters:
    """The hyperparameters of a copy of a regressor's model; it makes regressors at other values."""

    estimator: InvariantGPRegressor
    model: RegressionModel
    hyperparameters: Hyperparameters

    def regressor(self, vector: Tensor) -> InvariantGPRegressor:
        """The regressor with its hyperparameters at z, conditioned on the same data."""
        self.hyperparameters.set(vector)
        # copies share the data, but not the hyperparameters
        model = replace(self.model, latent=copy.deepcopy(self.model.latent))
        with torch.no_grad():
            return _conditioned(self.estimator, model)


def hyperparameters_of(
    estimator: InvariantGPRegressor,
    priors: Mapping[str, Distribution] | None = None,
    default_scale: float = DEFAULT_SCALE,
) -> Hyperparameters:
    """The hyperparameters of a fitted exact regressor, with the values at which the fit ended.

    They belong to a copy: the estimator does not change. Hyperpriors are those registered on its kernel,
    those of `priors` by name ("noise", "lengthscale", …), and defaults around the start of the fit.
    """
    return fitted_hyperparameters(estimator, priors, default_scale).hyperparameters


def fitted_hyperparameters(
    estimator: BaseEstimator,
    priors: Mapping[str, Distribution] | None = None,
    default_scale: float = DEFAULT_SCALE,
) -> FittedHyperparameters:
    """The hyperparameters of a fitted exact regressor, with the copy of the model to which they belong.

    Raises
    ------
    ValueError
        If the estimator is not an exact regressor: its evidence at other hyperparameters is not known.
    """
    check_is_fitted(estimator)
    if not isinstance(estimator, InvariantGPRegressor) or not isinstance(
        estimator.posterior_, ExactPosterior
    ):
        kind = getattr(estimator, "inference_", type(estimator).__name__)
        raise ValueError(
            f"Hyperparameters can be integrated out of exact regressors only, not of {kind}: fit "
            "InvariantGPRegressor(inference='exact')."
        )
    model = estimator.model_.at(estimator.functional_)
    model = replace(model, latent=copy.deepcopy(model.latent))
    latent = model.latent
    fitted = {name: parameter.detach().clone() for name, parameter in latent.named_parameters()}
    _put(latent, _start(estimator, model))
    hyperparameters = Hyperparameters(
        ModelEvidence(model), latent, priors, _named_parameters(model), default_scale
    )
    _put(latent, fitted)
    return FittedHyperparameters(estimator, model, hyperparameters)


def _start(estimator: InvariantGPRegressor, model: RegressionModel) -> dict[str, Tensor]:
    """The parameters at which a fit of this estimator begins."""
    data = model.observations[0]
    functional = copy.deepcopy(
        functional_of(estimator.invariance, estimator.n_features_in_, input_shape(estimator))
    )
    if (features := features_of(estimator.functional_)) is not None:
        functional = functional @ FeatureMap(features)
    begun = prepare(
        held_rows(data.x).cpu().numpy(),
        model.target_scale.targets(data.targets).numpy(),
        data.weights().cpu().numpy(),
        freeze_functional(functional.double(), 2, torch.Generator().manual_seed(0)),
        estimator.kernel,
        estimator.noise,
        estimator.mean,
        estimator.normalize_y,
        estimator.one_sided,
        (),
        is_image=estimator.form_.image_shape is not None,
    )
    start = {name: parameter.detach() for name, parameter in begun.latent.named_parameters()}
    for i, extra in enumerate(model.observations[1:]):
        start[f"noises.{i}.raw_noise"] = torch.full((1,), extra.size * NOISE_START).double().log()
    return start


def _named_parameters(model: RegressionModel) -> dict[str, NamedParameter]:
    """Noise variances in squared units of the targets, or of the first of several outputs."""
    unit = model.target_scale.scale[0].square().item()

    def named(name: str, likelihood: Likelihood) -> NamedParameter:
        floor = getattr(likelihood, "floor", NOISE_FLOOR)
        return NamedParameter(name, lambda raw: unit * (raw.exp() + floor), lambda raw: unit * raw.exp())

    found = {"likelihood.raw_noise": named("noise", model.latent.likelihood)}
    for i, each in enumerate(model.latent.others):
        found[f"noises.{i}.raw_noise"] = named(f"observation_noise.{i}", each)
    return found


def _put(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(values[name])


def _conditioned(estimator: InvariantGPRegressor, model: RegressionModel) -> InvariantGPRegressor:
    """A copy of the estimator with this model."""
    other = copy.copy(estimator)
    posterior = model.exact.posterior()
    other.model_, other.posterior_ = model, posterior
    other.functional_, other.kernel_ = model.latent.functional, model.latent.process.kernel
    other.noise_ = other.target_scale_.variance(model.latent.noise.reshape(1))
    other.observation_noise_ = model.other_noise()
    terms = model.evidence(posterior)
    other.log_evidence_ = terms.value
    other.evidence_terms_ = {"fit": terms.fit, "complexity": terms.complexity, "constant": terms.constant}
    other.jitter_ = terms.jitter
    return other
