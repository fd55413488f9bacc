"""Recipes of functionals, rows, processes, likelihoods and posteriors, and of what `fit` may go on from.

Inputs of merged training rows are part of an exact posterior; those of a sparse one are not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Tensor

from orbitwise.estimators.regression_model import RegressionModel, TargetScale
from orbitwise.functionals.atoms import Atoms, Gradients
from orbitwise.functionals.averages import LocalAverage, OrbitAverage, OrbitSum
from orbitwise.functionals.derivatives import (
    DirectionalDerivative,
    DirectionalDerivatives,
    FiniteDifference,
    Gradient,
    TransformationDerivative,
)
from orbitwise.functionals.functional import Combination, Composition, Functional
from orbitwise.functionals.points import Difference, Evaluation, FeatureMap, Wrap
from orbitwise.functionals.tangents import ImageTangent
from orbitwise.inference.exact import ExactPosterior
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.sparse.whitened import Whitened, WhitenedFactor
from orbitwise.likelihoods.bernoulli import Bernoulli
from orbitwise.likelihoods.dirichlet import Dirichlet
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.laplace import Laplace
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.likelihoods.poisson import Poisson
from orbitwise.likelihoods.softmax import Softmax
from orbitwise.likelihoods.student import StudentT
from orbitwise.orbits.orbit import Orbit, Symmetry
from orbitwise.process.process import Process, as_blocks
from orbitwise.storage.factors import check_factor, check_solution
from orbitwise.storage.recipes import LARGEST, SMALLEST, Field, Recipe, is_plain_numbers, require, table_of
from orbitwise.transforms.transform import Transform

TENSOR = Field(Tensor)
MAYBE_TENSOR = Field((Tensor, NoneType))
NUMBERS = Field(Tensor, dtype=torch.float64)
MAYBE_NUMBERS = Field((Tensor, NoneType), dtype=torch.float64)
POSITIVE_NUMBERS = Field(Tensor, least=SMALLEST, dtype=torch.float64)
PLACES = Field(Tensor, dtype=torch.int64)
SYMMETRY = Field((Symmetry, NoneType))
FEATURE_MAP = (
    "FeatureMap evaluates a function of your own, which is code and cannot be stored; fit on the features "
    "themselves, computed beforehand, or pickle the model, for yourself alone."
)


def _check_atoms(rows: Atoms) -> None:
    shape = rows.points.shape
    require(rows.points.dim() == 3 and min(shape) > 0, "points that are not [n, s, d]")
    require(rows.weights.shape == shape[:2], "weights of another shape")
    require(rows.tangents is None or rows.tangents.shape == shape, "tangents of another shape")
    require(rows.order.shape == rows.draw.shape == shape[1:2], "orders of another shape")
    require(bool(((rows.order == 0) | (rows.order == 1)).all()), "orders other than 0 and 1")
    require(rows.tangents is not None or not bool(rows.order.any()), "slopes without tangents")
    require(not bool(rows.draw.any()), "draws that are not there")
    require(rows.blur is None or rows.blur.shape == shape[1:2], "blurs of another shape")
    require(rows.blur is None or bool((rows.blur >= 0).all()), "a negative blur")
    _check_symmetry(rows.symmetry, shape[1])


def _check_gradients(rows: Gradients) -> None:
    shape = rows.points.shape
    require(rows.points.dim() == 3 and min(shape) > 0, "points that are not [n, s, d]")
    require(rows.weights.shape == shape[:2] and rows.directions.dim() == 4, "weights of another shape")
    same = (*rows.directions.shape[:2], rows.directions.shape[-1])
    require(same == shape and rows.num_directions > 0, "directions of another shape")
    _check_symmetry(rows.symmetry, shape[1])


def _check_symmetry(symmetry: Symmetry | None, atoms: int) -> None:
    require(
        symmetry is None or (symmetry.size > 0 and atoms % symmetry.size == 0), "a symmetry of other rows"
    )


def _check_exact(posterior: ExactPosterior) -> None:
    blocks = as_blocks(posterior.rows)
    count = sum(block.num_rows for block in blocks)
    require(len({block.points.shape[-1] for block in blocks}) == 1, "rows of different widths")
    require(posterior.targets.dim() == 2 and len(posterior.targets) == count, "targets of other rows")
    require(posterior.weights.shape == posterior.targets.shape, "weights of other rows")
    require(posterior.lower.shape == (count, count), "a factor of other rows")
    require(posterior.targets.shape[1] > 0, "no targets")
    check_factor(posterior.lower)
    with torch.no_grad():
        # (K+Σ)⁻¹(y-m)
        residual = posterior.targets - posterior.process.mean(posterior.rows)[:, None]
    check_solution(posterior.lower, posterior.weights, residual)


def _check_sparse(posterior: SparsePosterior) -> None:
    inducing, size = posterior.inducing, posterior.lower.shape[-1]
    count = inducing.num_rows if isinstance(inducing, Atoms) else len(inducing)
    require(isinstance(inducing, Atoms) or inducing.dim() == 2, "inducing points that are not [u, d]")
    require(posterior.lower.shape == (count, count), "a factor of other inducing points")
    require(len(posterior.q.mean) == size, "a q of other inducing points")
    check_factor(posterior.lower)


def _whitened(precision: Tensor, shift: Tensor) -> Whitened:
    require(shift.dim() == 2 and min(shift.shape) > 0, "a shift of another shape")
    size, outputs = shift.shape
    require(precision.shape in ((size, size), (outputs, size, size)), "a precision of another shape")
    return Whitened(precision, shift)


def _check_whitened(q: Whitened) -> None:
    require(q.lower.shape == q.precision.shape and q.mean.shape == q.shift.shape, "a mean of another shape")
    check_factor(q.lower)
    # S⁻¹m = h
    mean, shift = (q.mean, q.shift) if q.is_shared else (each.T[..., None] for each in (q.mean, q.shift))
    check_solution(q.lower, mean, shift)


def _check_whitened_factor(q: WhitenedFactor) -> None:
    with torch.no_grad():
        diagonal = q.factor.diagonal(dim1=-1, dim2=-2)
    require(is_plain_numbers(diagonal, SMALLEST), "a factor whose diagonal is out of range")


def _check_noise(likelihood: Gaussian) -> None:
    require(is_plain_numbers(likelihood.noise.detach(), SMALLEST), "noise out of range")


def _check_regression_model(model: RegressionModel) -> None:
    require(is_plain_numbers(model.target_scale.scale, SMALLEST), "a scale that is not positive")
    if isinstance(model.latent.likelihood, Gaussian):
        require(is_plain_numbers(model.latent.likelihood.noise.detach(), 0.0), "noise out of range")


def _whitened_factor(mean: Tensor, raw: Tensor) -> WhitenedFactor:
    require(mean.dim() == 2 and min(mean.shape) > 0, "a mean of another shape")
    size, outputs = mean.shape
    require(raw.shape in ((size, size), (outputs, size, size)), "a factor of another shape")
    return WhitenedFactor(size, outputs, raw.dim() == 2)


def _gaussian(num_outputs: int, given: float | None = None) -> Gaussian:
    if given is not None:
        return Gaussian(given, num_outputs, learnable=False)
    return Gaussian(num_outputs=num_outputs)


def _check_scale(likelihood: Laplace | StudentT) -> None:
    numbers = [parameter.detach().exp() for parameter in likelihood.parameters()]
    require(all(is_plain_numbers(each, SMALLEST) for each in numbers), "noise out of range")


def _student(num_nodes: int) -> StudentT:
    return StudentT(num_nodes=num_nodes)


def _softmax(num_classes: int, num_nodes: int) -> Softmax:
    require(4 * num_classes <= num_nodes <= 2**20, "another number of nodes")
    return Softmax(num_classes, num_nodes)


def _regression_model(
    functional: Functional,
    process: Process,
    scale: Tensor,
    shift: Tensor,
    fixed_noise: Tensor | None,
    raw_noise: Tensor,
    width: int,
    likelihood: Likelihood | None = None,
) -> RegressionModel:
    """A model of no rows: it knows its noise, and a later `fit` goes on from it."""
    require(scale.dim() == 1 and shift.shape == scale.shape, "a scale of another shape")
    require(fixed_noise is None or fixed_noise.shape in (scale.shape, (1,)), "noise of another shape")
    require(raw_noise.dim() == 0, "noise of another shape")
    if likelihood is None and fixed_noise is not None:
        likelihood = Gaussian(fixed_noise[0].item(), learnable=False)
    elif likelihood is None:
        likelihood = Gaussian()
        likelihood.raw_noise.data = raw_noise.reshape(1)
    latent = LatentModel(process, functional, likelihood)
    return RegressionModel(latent, (_no_rows(width, len(scale)),), TargetScale(shift, scale))


def _raw_noise(model: RegressionModel) -> Tensor:
    likelihood = model.latent.likelihood
    if isinstance(likelihood, Gaussian) and not likelihood.is_fixed:
        return likelihood.raw_noise[0]
    return torch.zeros((), dtype=torch.float64)


def _fixed_noise(model: RegressionModel) -> Tensor | None:
    likelihood = model.latent.likelihood
    if isinstance(likelihood, Gaussian) and likelihood.is_fixed:
        return likelihood.noise.detach()
    return None


def _other_likelihood(model: RegressionModel) -> Likelihood | None:
    likelihood = model.latent.likelihood
    return None if isinstance(likelihood, Gaussian) else likelihood


def _no_rows(width: int, outputs: int) -> Observations:
    x, targets = (torch.zeros(0, size, dtype=torch.float64) for size in (width, outputs))
    return Observations(Evaluation(), x, targets)


@dataclass(frozen=True)
class Problem:
    """The model of a classifier as files hold it, without its rows: a later `fit` resumes from it."""

    process: Process
    functional: Functional
    likelihood: Likelihood
    width: int
    outputs: int

    @classmethod
    def of(cls, model: RegressionModel) -> Problem:
        """That of a fitted classifier's model."""
        latent, rows = model.latent, model.observations[0]
        sizes = rows.x.shape[1], rows.targets.shape[1]
        return cls(latent.process, latent.functional, latent.likelihood, *sizes)

    @property
    def model(self) -> RegressionModel:
        """A model of no rows."""
        latent = LatentModel(self.process, self.functional, self.likelihood)
        unit = torch.ones(self.outputs, dtype=torch.float64)
        rows = _no_rows(self.width, self.outputs)
        return RegressionModel(latent, (rows,), TargetScale(torch.zeros_like(unit), unit))


def _process(mean_module: Mean, kernel: Kernel, one_sided: Any) -> Process:
    return Process(mean_module, kernel, one_sided)


POSTERIORS = table_of(
    Recipe(Evaluation),
    Recipe(Difference),
    Recipe(FeatureMap, never=FEATURE_MAP),
    Recipe(LocalAverage, {"width": Field((int, float), least=SMALLEST)}),
    Recipe(
        Wrap,
        {
            "period": Field(float, lambda wrap: wrap.period.item(), least=SMALLEST),
            "column": Field(int, least=0),
        },
        check=lambda wrap: require(SMALLEST <= wrap.period.item() <= LARGEST, "a period out of range"),
    ),
    Recipe(OrbitAverage, {"orbit": Field(Orbit)}),
    Recipe(OrbitSum, {"orbit": Field(Orbit, lambda functional: functional.average.orbit)}),
    Recipe(
        Combination,
        {
            "parts": Field(list, lambda functional: list(functional.parts), each=Functional),
            "factors": Field(list, each=(int, float)),
        },
        check=lambda sum_: require(len(sum_.parts) == len(sum_.factors) > 0, "other factors than parts"),
    ),
    Recipe(Composition, {"outer": Field(Functional), "inner": Field(Functional)}),
    Recipe(DirectionalDerivative, {"direction": TENSOR}),
    Recipe(DirectionalDerivatives, {"directions": TENSOR}),
    Recipe(
        ImageTangent,
        {
            "image_shape": Field(tuple, each=int, is_size=True),
            "moves": Field(tuple, each=(str, tuple)),
            "smoothing": Field((int, float), least=0, most=10_000),
        },
    ),
    Recipe(
        FiniteDifference,
        {"direction": TENSOR, "step": Field((int, float), least=SMALLEST), "order": Field(int)},
    ),
    Recipe(Gradient, {"coordinates": Field((list, NoneType), each=int)}),
    Recipe(TransformationDerivative, {"transform": Field(Transform), "parameter": Field((int, NoneType))}),
    Recipe(
        Symmetry,
        {"token": Field(Orbit), "size": Field(int, least=1), "isometric": Field(bool)},
        check=lambda symmetry: require(symmetry.token.size == symmetry.size, "a symmetry of another orbit"),
    ),
    Recipe(
        Atoms,
        {
            "points": NUMBERS,
            "weights": NUMBERS,
            "tangents": MAYBE_NUMBERS,
            "order": PLACES,
            "draw": PLACES,
            "symmetry": SYMMETRY,
            "blur": MAYBE_NUMBERS,
        },
        check=_check_atoms,
        refuse=lambda rows: "rows drawn at random cannot be stored; freeze them." if rows.is_drawn else None,
    ),
    Recipe(
        Gradients,
        {"points": NUMBERS, "weights": NUMBERS, "directions": NUMBERS, "symmetry": SYMMETRY},
        check=_check_gradients,
    ),
    Recipe(
        Process,
        {"mean_module": Field(Mean), "kernel": Field(Kernel), "one_sided": Field((bool, str))},
        _process,
        attributes={"_checked": Field(list, each=Orbit)},
    ),
    Recipe(Bernoulli),
    Recipe(Dirichlet, {"alpha": Field((int, float), least=SMALLEST)}),
    Recipe(Poisson),
    Recipe(Laplace, check=_check_scale),
    Recipe(StudentT, {"num_nodes": Field(int, least=1, most=1000)}, _student, check=_check_scale),
    Recipe(
        Softmax,
        {
            "num_classes": Field(int, lambda softmax: softmax.nodes.shape[1], least=2, is_size=True),
            "num_nodes": Field(int, lambda softmax: softmax.nodes.shape[0], is_size=True),
        },
        _softmax,
        check=lambda softmax: require(is_plain_numbers(softmax.nodes), "nodes that are not finite"),
    ),
    Recipe(
        Gaussian,
        {
            "num_outputs": Field(
                int, lambda noise: 0 if noise.shares_curvature else len(noise.raw_noise), is_size=True
            ),
            "given": Field((float, NoneType), least=0, is_new=True),
        },
        _gaussian,
        check=_check_noise,
    ),
    Recipe(
        ExactPosterior,
        {
            "process": Field(Process),
            "rows": Field((Atoms, Gradients, list), each=(Atoms, Gradients)),
            "targets": NUMBERS,
            "weights": NUMBERS,
            "lower": NUMBERS,
            "jitter": Field((int, float), least=0),
        },
        check=_check_exact,
    ),
    Recipe(
        SparsePosterior,
        {
            "process": Field(Process),
            "inducing": Field((Tensor, Atoms)),
            "q": Field((Whitened, WhitenedFactor)),
            "lower": NUMBERS,
        },
        check=_check_sparse,
    ),
    Recipe(
        Whitened,
        {"precision": NUMBERS, "shift": NUMBERS},
        _whitened,
        attributes={"lower": NUMBERS, "mean": NUMBERS},
        check=_check_whitened,
    ),
    Recipe(WhitenedFactor, {"mean": NUMBERS, "raw": NUMBERS}, _whitened_factor, check=_check_whitened_factor),
    Recipe(
        RegressionModel,
        {
            "functional": Field(Functional, lambda model: model.latent.functional),
            "process": Field(Process, lambda model: model.latent.process),
            "scale": Field(Tensor, lambda model: model.target_scale.scale, dtype=torch.float64),
            "shift": Field(Tensor, lambda model: model.target_scale.shift, dtype=torch.float64),
            "fixed_noise": Field((Tensor, NoneType), _fixed_noise, dtype=torch.float64),
            "raw_noise": Field(Tensor, _raw_noise, dtype=torch.float64),
            "width": Field(int, lambda model: model.observations[0].x.shape[1], least=1),
            "likelihood": Field((Likelihood, NoneType), _other_likelihood, is_new=True),
        },
        _regression_model,
        has_state=False,
        check=_check_regression_model,
    ),
    Recipe(
        Problem,
        {
            "process": Field(Process),
            "functional": Field(Functional),
            "likelihood": Field(Likelihood),
            "width": Field(int, least=1),
            "outputs": Field(int, least=1),
        },
    ),
)
