"""The engines of regression: which one serves, and how each fits a model that was prepared.

All merge equal rows; only exact inference takes observations of other functionals, or targets without noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orbitwise.estimators.engines import (
    Callback,
    Fit,
    Problem,
    engine_for,
    fit_collapsed,
    fit_variational,
    progress_of,
)
from orbitwise.estimators.estimator import iterations_of
from orbitwise.estimators.learned_ranges import LEAST_NOISE, Start, announce_exact, learn_orbit
from orbitwise.estimators.likelihoods import regression_likelihood
from orbitwise.estimators.regression_model import RegressionModel
from orbitwise.estimators.validation import check_counts
from orbitwise.functionals.averages import is_drawn
from orbitwise.functionals.functional import Functional
from orbitwise.inference.optimise.training import maximize
from orbitwise.inference.sparse.certificate import certify
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood

MOST_REPEATED = 16
"""Weights that single precision bears: they divide the noise of their rows."""
REFINED_ATOMS = 8_192
"""Up to so many points of orbits, conjugate gradients narrow the certificate of a collapsed fit."""


def check_settings(estimator: Any) -> None:
    """Raise a ValueError where the numbers for the engines, or the name of one, make no sense."""
    engines = ("auto", "exact", "collapsed", "variational")
    if estimator.inference not in engines:
        raise ValueError(f"inference must be one of {', '.join(engines)}, not {estimator.inference!r}.")
    steps = () if estimator.num_steps is None else ("num_steps",)
    check_counts(estimator, ("num_inducing", *steps, "batch_size"))


def other_likelihood(
    estimator: Any, y: NDArray[np.float64], weight: NDArray[np.float64], observations: Sequence[Any]
) -> Likelihood | None:
    """The likelihood of the targets where it is not Gaussian noise, which the model itself learns."""
    likelihood = regression_likelihood(estimator.likelihood)
    if isinstance(likelihood, Gaussian):
        if isinstance(estimator.likelihood, Likelihood):
            raise ValueError(
                "Gaussian noise is given by its variance: use likelihood='gaussian' and noise=…."
            )
        return None
    name = type(likelihood).__name__
    reasons = {
        "observations of other functionals": len(observations) > 0,
        "sample weights other than 1": bool((weight != 1).any()),
        f"noise={estimator.noise!r} (start from an instance, such as StudentT(scale=0.1), instead)": (
            estimator.noise is not None
        ),
        "inference='exact'": estimator.inference == "exact",
    }
    if refused := [reason for reason, holds in reasons.items() if holds]:
        raise ValueError(f"The likelihood {name} does not take {', '.join(refused)}; Gaussian noise does.")
    likelihood.check_targets(torch.from_numpy(y))
    return likelihood


def regression_engine(estimator: Any, num_rows: int, observations: Sequence[Any]) -> str:
    """The engine for these data: by the number of rows, but exact where no other one serves."""
    reasons = {
        "observations of other functionals": len(observations) > 0,
        "noise=0": estimator.noise == 0,
    }
    needs_exact = [reason for reason, holds in reasons.items() if holds]
    if estimator.inference not in ("auto", "exact"):
        if needs_exact:
            reason = ", ".join(needs_exact)
            raise ValueError(
                f"inference={estimator.inference!r} does not take {reason}: use inference='exact'."
            )
        return estimator.inference
    return "exact" if estimator.inference == "exact" or needs_exact else engine_for(num_rows)


def resume(model: RegressionModel, previous: RegressionModel) -> None:
    """Start where an earlier model ended: its noise and mean (kernel and orbit are shared already)."""
    with torch.no_grad():
        model.raw_noise[0].copy_(previous.raw_noise[0])
    if model.likelihood is not None and type(model.likelihood) is type(previous.likelihood):
        model.likelihood.load_state_dict(previous.likelihood.state_dict())
    mean, before = model.process.mean_module, previous.process.mean_module
    if type(mean) is type(before):
        mean.load_state_dict(before.state_dict())


def place(model: RegressionModel, functional: Functional, device: str) -> None:
    """Move a model to a device; scale and shift of the targets stay, for predictions come back."""
    functional.to(device)
    model.to(device)
    model.x, model.weight, model.targets = (
        each.to(device) for each in (model.x, model.weight, model.targets)
    )
    if model.fixed_noise is not None:
        model.fixed_noise = model.fixed_noise.to(device)
    model.extras = [
        extra._replace(
            functional=extra.functional.to(device),
            x=extra.x.to(device),
            noise=None if extra.noise is None else extra.noise.to(device),
        )
        for extra in model.extras
    ]


def fit_model(
    estimator: Any,
    model: RegressionModel,
    functional: Functional,
    generator: torch.Generator,
    report: Callback,
    start: Start | None = None,
) -> Fit:
    """Exact inference; `functional` is the model's before it was frozen, the model's own on few nodes.

    With a `start` the search goes on from the present parameters.
    """
    search, error = None, 0.0
    num_nodes, max_iterations = estimator.num_nodes, iterations_of(estimator)
    if start is not None:
        num_nodes, max_iterations = start.num_nodes, start.max_iterations
    # with no iterations, the objective would only repeat the factorisation that conditioning needs
    settled, history = False, []
    rows = (model.x, model.targets, model.weight, model.extras, model.fixed_noise)
    progress = progress_of(estimator, "exact", model, functional, rows, generator)
    journal = None if progress is None else progress.journal
    if is_drawn(functional):
        floors = {raw: np.log(LEAST_NOISE) for raw in model.raw_noise if raw.requires_grad}
        search = learn_orbit(
            lambda frozen, precision: partial(model.objective, frozen, precision),
            functional,
            model.process,
            [model],
            floors,
            model.x,
            num_nodes,
            estimator.max_nodes,
            max_iterations,
            estimator.max_seconds,
            report,
            None if start is not None else journal,
            estimator.num_restarts,
            generator,
            is_noisy=_is_noisy(model),
            is_resumed=start is not None,
        )
        model.functional = search.functional
        settled, history = search.found.is_converged(len(model.x)), search.found.history
        error = search.found.node_error
    else:
        announce_exact(model.process, model.functional, model.x, iterations_of(estimator), False)
    if search is None and iterations_of(estimator) > 0:
        training = maximize(
            model.objective,
            list(model.parameters()),
            iterations_of(estimator),
            estimator.num_restarts,
            generator=generator,
            callback=report,
            journal=journal,
        )
        settled, history = training.has_settled, training.history
    with torch.no_grad():
        posterior = model.posterior()
        value = model.evidence(posterior).value
    return Fit(
        posterior,
        model.functional,
        value,
        "exact",
        error,
        settled,
        model.objective,
        history,
        search=search,
    )


def _is_noisy(model: RegressionModel) -> bool:
    """Whether the noise of every row is so large that single precision serves the search for ranges."""
    least = LEAST_NOISE if model.fixed_noise is None else float(model.fixed_noise.min())
    return not model.extras and least / float(model.weight.max()) >= LEAST_NOISE / MOST_REPEATED


def generator_on(device: str | torch.device, generator: torch.Generator) -> torch.Generator:
    """The generator itself where it is there already, else one on the device with its seed."""
    device = torch.device(device)
    if generator.device.type == device.type:
        return generator
    return torch.Generator(device).manual_seed(generator.initial_seed())


def sparse_problem(
    model: RegressionModel,
    functional: Functional,
    x: NDArray[np.float64],
    targets: NDArray[np.float64],
    device: str,
    generator: torch.Generator,
) -> Problem:
    """Rows with standardised targets: merged where rows are equal or weighted and noise is Gaussian.

    Noise that was given stays as it is.
    """
    rows, standardised = torch.from_numpy(x), (torch.from_numpy(targets) - model.shift) / model.scale
    likelihood, replicates = model.likelihood, None
    if likelihood is None:
        likelihood = Gaussian(model.noise()[0].item(), learnable=model.fixed_noise is None)
        if len(model.x) < len(x) or not bool((model.weight == 1).all()):
            rows, standardised, replicates = model.x, model.targets, model.merged_rows()
    return Problem(
        model.process,
        functional,
        likelihood.to(device),
        rows.to(device),
        standardised.to(device),
        generator_on(device, generator),
        replicates,
    )


def fit_sparse(estimator: Any, model: RegressionModel, problem: Problem, report: Callback) -> Fit:
    """The estimator's sparse engine, with the evidence of the targets as given; the model gets the noise."""
    progress = progress_of(estimator, estimator.inference_, *problem.parts)
    if estimator.inference_ == "variational":
        size = min(estimator.num_inducing, len(problem.x) * (16 if problem.is_drawn else 1))
        fit = fit_variational(problem, size, estimator.num_steps, estimator.batch_size, report, progress)
    else:
        held = problem.parameters if estimator.max_iterations == 0 else []
        for parameter in held:
            parameter.requires_grad_(False)
        fit = fit_collapsed(
            problem,
            estimator.num_nodes,
            estimator.num_inducing,
            iterations_of(estimator),
            num_restarts=estimator.num_restarts,
            callback=report,
            progress=progress,
        )
        for parameter in held:
            parameter.requires_grad_(True)
        fit.converged = fit.converged and not held
    if isinstance(problem.likelihood, Gaussian) and model.fixed_noise is None:
        with torch.no_grad():
            model.raw_noise[0].copy_(problem.likelihood.raw_noise[0])
    # p(y) = p(standardised y) / scale, for every row and output
    constant = float(model.weight.sum()) * float(model.scale.log().sum())
    fit.log_evidence -= constant
    fit.half_bound = None if fit.half_bound is None else fit.half_bound - constant
    if isinstance(fit.objective, SparseModel) and not problem.is_drawn:
        num_atoms = len(problem.x) * fit.objective.observations.num_atoms
        fit.certificate = certify(fit.objective, num_atoms <= REFINED_ATOMS).shifted(-constant)
        fit.log_evidence = fit.certificate.lower
    return fit
