"""One hypothesis, fitted and scored: the mode of its hyperparameters, then BIC or Laplace's evidence.

Known values stay, and a new term begins at what is left over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any, final

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel
from gpytorch.means import ConstantMean, ZeroMean
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from orbitwise.functionals.atoms import Atoms
from orbitwise.inference.linear_algebra import cholesky, gaussian_log_density
from orbitwise.inference.optimise.ascent import Vector, finite_difference_hessian
from orbitwise.inference.optimise.hyperparameters import JointHyperprior, parts_of
from orbitwise.inference.optimise.hyperpriors import WEAK_AMPLITUDE_SCALE, LogNormalDistance, weak_hyperpriors
from orbitwise.inference.optimise.training import Training, assign_flat, evaluate, flat_values, maximize
from orbitwise.kernels.bases import CentredLinearKernel, start
from orbitwise.kernels.spectrum import detrend, strongest_periods
from orbitwise.kernels.spelling import (
    Expression,
    Product,
    Sum,
    Term,
    add,
    build,
    expression_of,
    multiply,
    summands,
    terms,
)
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.process.double_sums import value_covariance
from orbitwise.selection.evidence import STEP, laplace_log_evidence
from orbitwise.selection.search.hypotheses import (
    SMOOTH,
    Hypothesis,
    bare,
    functional_of_claims,
    learned_claims,
    located_back,
    relocated,
    started,
)

Array = NDArray[np.float64]
CYCLES = ("periodic", "cosine")
NUM_PERIODS = 6
SHARP = 0.3
FASTER = (0.3, 0.1)
SLOW = 3.0
"""A smooth factor starts this many spreads long, so that a product starts near what it was made of."""


def fresh(hypothesis: Hypothesis, x: Array, y: Array, seed: int | None) -> Hypothesis:
    """The structure with every value started from the data."""
    structure = bare(hypothesis.expression)
    _, width = relocated(structure, hypothesis.claims, x.shape[1])
    claims = tuple(started(claim.structure, x, y, seed) for claim in hypothesis.claims)
    if width != x.shape[1]:
        # lengthscales around a circle are started by those along the line
        structure = _each(structure, lambda term: _valued(term, x, y, seed))
    else:
        structure = expression_of(start(build(structure, width), x, y, seed=seed), values=True, digits=17)
    return Hypothesis(structure, claims, None)


def grown(hypothesis: Hypothesis, new: Term | None, x: Array, y: Array, left: Array) -> list[Hypothesis]:
    """Starts with values for what is new: from the residuals `left` of the hypothesis it grew from.

    A new cycle has a start for every period that stands out in the residuals or in the targets, for
    the likelihood has a mode at each of them; a smooth term may be slow or fast, and a line that multiplies
    may vanish in the middle of the data or at an end, each a mode of its own.
    """
    claims = tuple(started(claim, x, y, None) for claim in hypothesis.claims)
    if new is None:
        return [replace(hypothesis, claims=claims)]
    expression = _completed(hypothesis.expression, x, left)
    first = replace(hypothesis, expression=expression, claims=claims)
    place = _place_of_new(hypothesis)
    changes: list[dict[str, float]] = []
    if new.name in SMOOTH:
        slow = dict(terms(expression)[place].values)["lengthscale"][0]
        changes = [{"lengthscale": slow * factor} for factor in FASTER]
    elif new.name in CYCLES:
        changes = _cycles(new, x, y, left)
    elif new.name == "linear" and _is_factor(new, hypothesis.expression) and len(new.columns or (0,)) == 1:
        changes = [{"centre": end} for end in (_column(new, x).min(), _column(new, x).max())]
    return _varied(first, place, changes)


def anew(hypothesis: Hypothesis, new: Term | None, x: Array, y: Array) -> list[Hypothesis]:
    """Starts from the data alone; of a new cycle, for several periods.

    What a parent has learned may already stand for the new term: a fast change for a cycle.
    """
    first = fresh(hypothesis, x, y, None)
    if new is None or new.name not in CYCLES:
        return [first]
    return _varied(first, _place_of_new(hypothesis), _periods(new, x, detrend(_column(new, x), y)[0]))


def _place_of_new(hypothesis: Hypothesis) -> int:
    """The number of the term that has no values yet."""
    return next(i for i, term in enumerate(terms(hypothesis.expression)) if not term.values)


def _varied(first: Hypothesis, place: int, changes: list[dict[str, float]]) -> list[Hypothesis]:
    """A start, and others that differ from it in one term."""
    return [first, *(replace(first, expression=_changed(first.expression, place, each)) for each in changes)]


def _is_factor(new: Term, expression: Expression) -> bool:
    return all(part != new for part in summands(expression))


def _column(term: Term, x: Array) -> Array:
    """The first column that a term sees."""
    return x[:, 0 if term.columns is None else term.columns[0]]


def _cycles(new: Term, x: Array, y: Array, left: Array) -> list[dict[str, float]]:
    """Periods, and shapes, that a new cycle may have."""
    found = _periods(new, x, left)
    changes = [*found, *_periods(new, x, detrend(_column(new, x), y)[0])]
    if new.name == "periodic":
        # What a smooth parent leaves of a cycle may be its overtones alone, as of a shape with sharp turns.
        overtones = [number * each["period_length"] for each in found[:2] for number in (2, 3, 4)]
        changes += [{"period_length": period, "lengthscale": SHARP} for period in overtones]
    return changes


def _periods(new: Term, x: Array, y: Array) -> list[dict[str, float]]:
    """The periods that stand out in y."""
    half = 0.5 if new.name == "cosine" else 1.0  # GPyTorch's cosine repeats itself after twice its period
    found = _strongest(_column(new, x).tobytes(), y.tobytes())
    return [{"period_length": half * each} for each in found]


@lru_cache(maxsize=64)
def _strongest(column: bytes, y: bytes) -> tuple[float, ...]:
    """The strongest periods; the same data are asked about for every option of a step."""
    return tuple(strongest_periods(np.frombuffer(column), np.frombuffer(y), NUM_PERIODS).tolist())


def beside_a_line(hypothesis: Hypothesis, new: Term, x: Array, y: Array) -> list[Hypothesis]:
    """A start for a line that is added: it takes what least squares give it, the others start from the rest.

    Of what they were only their periods are kept, for without the line they had to make up for it.
    """
    others = [part for part in summands(hypothesis.expression) if part != new]
    columns = (0,) if new.columns is None else new.columns
    if not others or len(others) == len(summands(hypothesis.expression)) or len(columns) != 1:
        return []
    rest, share = detrend(x[:, columns[0]], y, degree=1)
    before = terms(add(*others))
    started = fresh(replace(hypothesis, expression=add(*others)), x, rest, None)
    parts = [multiply(part, factor=max(1 - share, 1e-6)) for part in summands(started.expression)]
    expression: Expression = add(*parts)
    for place, term in enumerate(before):
        kept = {name: values[0] for name, values in term.values if name == "period_length"}
        expression = _changed(expression, place, kept) if kept else expression
    line = multiply(_valued(new, x, y, None), factor=max(share, 1e-6))
    return [replace(started, expression=add(expression, line))]


def _changed(expression: Expression, place: int, change: dict[str, float]) -> Expression:
    """The expression with other hyperparameters of its term number `place`."""
    numbers = count()

    def changed(term: Term) -> Term:
        if next(numbers) != place:
            return term
        values = {**dict(term.values), **{name: (float(value),) for name, value in change.items()}}
        return replace(term, values=tuple(values.items()))

    return _each(expression, changed)


def _completed(expression: Expression, x: Array, left: Array) -> Expression:
    """Terms without values get some: additive ones the size of the residuals, factors a slow start."""
    if isinstance(expression, Term):
        return expression if expression.values else _additive(expression, x, left)
    if isinstance(expression, Sum):
        return add(*(_completed(part, x, left) for part in expression.parts))
    return multiply(
        *(_each(part, lambda term: _factor(term, x, left)) for part in expression.parts),
        factor=expression.factor,
    )


def _additive(term: Term, x: Array, left: Array) -> Expression:
    size = float(np.var(left)) or 1e-6
    return multiply(_valued(term, x, left, None), factor=max(size, 1e-6))


def _factor(term: Term, x: Array, left: Array) -> Expression:
    if term.values:
        return term
    valued = _valued(term, x, left, None)
    if term.name in SMOOTH and isinstance(valued, Term):
        slower = tuple(
            (name, tuple(SLOW * each for each in values) if name == "lengthscale" else values)
            for name, values in valued.values
        )
        return replace(valued, values=slower)
    return valued


def _valued(term: Term, x: Array, y: Array, seed: int | None) -> Expression:
    """The term with hyperparameters started from data, without an amplitude."""
    if term.values:
        return term
    valued = expression_of(start(build(term, x.shape[1]), x, y, seed=seed), values=True, digits=17)
    return multiply(*valued.parts) if isinstance(valued, Product) else valued


def _each(expression: Expression, change: Callable[[Term], Expression]) -> Expression:
    if isinstance(expression, Term):
        return change(expression)
    parts = [_each(part, change) for part in expression.parts]
    return add(*parts) if isinstance(expression, Sum) else multiply(*parts, factor=expression.factor)


FEW_ITERATIONS = 15
MOST_STARTS = 3
PATIENCE = 5
TOLERANCE = 0.01
"""A mode is found when so many iterations gain less than this many nats."""


@final
@dataclass(frozen=True)
class SearchProblem:
    """Rows to be explained, how a structure is scored, and until when, on a clock that processes share."""

    x: Array
    y: Array
    scoring: str = "bic"
    deadline: float = math.inf
    clock: Callable[[], float] = time.time

    def is_over(self) -> bool:
        """Whether no evaluation may begin any more."""
        return self.seconds_left() <= 0

    def seconds_left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - self.clock()


@final
@dataclass(frozen=True)
class Fitted:
    """A hypothesis with learned values, its log likelihood and its score, for targets as given."""

    hypothesis: Hypothesis
    log_likelihood: float
    score: float
    num_parameters: int
    seconds: float
    converged: bool


@final
class HypothesisModel:
    """A hypothesis as kernel, functional, noise and a constant that f lies around, for standardised targets.

    Where a kernel is zero somewhere, as that of a line or of its products is, taking the mean of the targets
    for the constant would be a claim on f there. Functionals that kill constants have none.
    """

    def __init__(self, hypothesis: Hypothesis, problem: SearchProblem) -> None:
        self.hypothesis, num_dims = hypothesis, problem.x.shape[1]
        moved, width = relocated(hypothesis.expression, hypothesis.claims, num_dims)
        self.kernel = build(moved, width)
        self.functional = functional_of_claims(hypothesis.claims, num_dims).double()
        self.likelihood = Gaussian(0.05 if hypothesis.noise is None else max(hypothesis.noise, 1e-12))
        self.x = torch.tensor(problem.x)
        is_odd = kills_constants(hypothesis)
        self.mean = ZeroMean() if is_odd else ConstantMean().double()
        # as the regressor does: a functional that kills constants leaves the targets where they are
        shift = 0.0 if is_odd else float(problem.y.mean())
        self.scale = float(np.sqrt(np.square(problem.y - shift).mean())) or 1.0
        self.y = torch.from_numpy((problem.y - shift) / self.scale)
        # k(mirrored x, mirrored x') = k(x, x') for what depends on differences alone
        mirrors = [claim.kind in ("mirror", "odd") for claim in hypothesis.claims]
        self.one_sided = len(mirrors) == 1 and all(mirrors) and bool(self.kernel.is_stationary)
        for line in [] if is_odd else _lines(self.kernel):
            line.centre.requires_grad_(False)  # c + w(x - a) has many (a, c) for one line
        with torch.no_grad():
            seen = self._atoms().points[:, 0, :].numpy()
            if isinstance(self.mean, ConstantMean):
                self.mean.constant = self._likely_constant()
        modules = {
            "likelihood": self.likelihood,
            "mean": self.mean,
            "functional": self.functional,
            "kernel": self.kernel,
        }
        self.hyperprior = JointHyperprior(parts_of(modules, {}), weak_hyperpriors(modules, seen))

    @property
    def constant(self) -> Tensor:
        """What f lies around, for standardised targets."""
        return self.mean.constant if isinstance(self.mean, ConstantMean) else torch.zeros_like(self.y[0])

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Everything that is learned."""
        return [part.raw for part in self.hyperprior.parts]

    @property
    def num_parameters(self) -> int:
        """How many numbers are learned, the noise and the constant among them."""
        return self.hyperprior.dimension

    def log_likelihood(self) -> Tensor:
        """log p(y | θ) of the standardised targets."""
        return gaussian_log_density(self._covariance(), self.y - self.constant)

    def log_joint(self) -> Tensor:
        """log p(y, θ), in the coordinates that are learned."""
        z = torch.cat([parameter.reshape(-1) for parameter in self.parameters])
        return self.log_likelihood() + self.hyperprior.log_density(z)

    def learned(self) -> Hypothesis:
        """The hypothesis with the present values."""
        return Hypothesis(
            located_back(expression_of(self.kernel, values=True, digits=17), self.hypothesis.claims),
            learned_claims(self.hypothesis.claims, self.functional),
            self.likelihood.raw_noise.exp().item(),
        )

    @torch.no_grad()
    def residuals(self) -> Array:
        """What the posterior mean of f leaves of the standardised targets: σ²(K + σ²I)⁻¹(y - c)."""
        lower, _ = cholesky(self._covariance())
        return (
            self.likelihood.noise * torch.cholesky_solve((self.y - self.constant)[:, None], lower)[:, 0]
        ).numpy()

    def _likely_constant(self) -> Tensor:
        """1ᵀK⁻¹y/(1ᵀK⁻¹1 + 1), the mode under its prior; 0 where the start has no covariance."""
        try:
            lower, _ = cholesky(self._covariance())
        except ValueError:
            return torch.zeros_like(self.y[0])
        weights = torch.cholesky_solve(torch.ones_like(self.y)[:, None], lower)[:, 0]
        return weights @ self.y / (weights.sum() + 1)

    def _covariance(self) -> Tensor:
        matrix = value_covariance(self.kernel, self._atoms(), self.one_sided)
        return matrix + self.likelihood.noise * torch.eye(len(matrix), dtype=matrix.dtype)

    def _atoms(self) -> Atoms:
        atoms = self.functional.atoms(self.x)
        assert isinstance(atoms, Atoms)
        return atoms


def _lines(kernel: Any) -> list[CentredLinearKernel]:
    """The lines that are components by themselves."""
    if isinstance(kernel, AdditiveKernel):
        return [line for part in kernel.kernels for line in _lines(part)]
    return [kernel] if isinstance(kernel, CentredLinearKernel) else []


def kills_constants(hypothesis: Hypothesis) -> bool:
    """Whether a constant added to g leaves f as it is."""
    return any(claim.kind == "odd" for claim in hypothesis.claims)


def fit(starts: Sequence[Hypothesis], problem: SearchProblem, max_iterations: int) -> Fitted | None:
    """The mode of one structure: a few iterations from the best starts, then on from the best of them.

    None where time is up, or where no start works. Time may also end it on its way: then it is scored where
    it stands, unless that takes long.
    """
    began = time.perf_counter()
    if problem.is_over():
        return None
    models = _promising([HypothesisModel(start, problem) for start in starts], problem)
    few = max_iterations if len(models) == 1 else min(FEW_ITERATIONS, max_iterations)
    tried = [each for each in (_train(model, problem, few) for model in models) if each]
    if not tried:
        return None
    model, training = max(tried, key=lambda each: each[1].value)
    if few < max_iterations and not training.converged:
        model, training = _train(model, problem, max_iterations - few) or (model, training)
    if problem.scoring == "laplace" and problem.is_over():
        return None  # its curvature would take many evaluations more
    return _scored(model, problem, training, time.perf_counter() - began)


def _promising(models: list[HypothesisModel], problem: SearchProblem) -> list[HypothesisModel]:
    """The highest starts, one from the data alone among them: those of a parent are high, but may mislead."""
    if len(models) <= MOST_STARTS:
        return models
    heights = [-math.inf if problem.is_over() else _height(model) for model in models]
    ranked = [models[i] for i in sorted(range(len(models)), key=lambda i: -heights[i])]
    anew = [model for model in ranked if model.hypothesis.noise is None]
    first = ranked[: MOST_STARTS - 1]
    others = [model for model in (*anew, *ranked) if all(model is not each for each in first)]
    return [*first, others[0]]


@torch.no_grad()
def _height(model: HypothesisModel) -> float:
    """log p(y, θ) at a start, to choose among many."""
    try:
        return model.log_joint().item()
    except ValueError:
        return -math.inf


def _train(
    model: HypothesisModel, problem: SearchProblem, iterations: int
) -> tuple[HypothesisModel, Training] | None:
    if problem.is_over():
        return None

    def stop(values: list[float]) -> bool:
        return len(values) > PATIENCE and values[-1] - values[-1 - PATIENCE] < TOLERANCE

    try:
        return model, maximize(
            model.log_joint, model.parameters, iterations, stop=stop, is_over=problem.is_over
        )
    except ValueError:
        return None


def _scored(model: HypothesisModel, problem: SearchProblem, training: Training, seconds: float) -> Fitted:
    count = len(problem.y)
    jacobian = count * math.log(model.scale)
    with torch.no_grad():
        value = model.log_likelihood().item() - jacobian
    if problem.scoring == "bic":
        score = value - 0.5 * model.num_parameters * math.log(count)
    else:
        score = laplace(model, training.value) - jacobian
    return Fitted(model.learned(), value, score, model.num_parameters, seconds, training.converged)


def laplace(model: HypothesisModel, joint: float) -> float:
    """log ∫ p(y, θ) dθ by a Gaussian at the mode; directions without curvature have that of their prior."""
    parameters = model.parameters
    mode = flat_values(parameters)

    def slope_of_fall(point: Vector) -> Vector:
        assign_flat(parameters, point)
        found = evaluate(model.log_joint, parameters)
        return np.full_like(point, np.nan) if found.failure else -found.gradient

    curvature = finite_difference_hessian(slope_of_fall, mode, STEP, central=True)
    assign_flat(parameters, mode)
    # in units of the priors, whose own curvature is 1
    hyperpriors = zip(model.hyperprior.parts, model.hyperprior.distributions.values(), strict=True)
    deviations = np.concatenate([_deviation(prior, part.size) for part, prior in hyperpriors])
    values = np.linalg.eigvalsh(curvature * deviations[:, None] * deviations)
    values = torch.from_numpy(np.maximum(values, 1.0 / WEAK_AMPLITUDE_SCALE))
    return laplace_log_evidence(joint, values) + float(np.log(deviations).sum())


def _deviation(hyperprior: Distribution, size: int) -> Array:
    """The deviation of every coordinate under a hyperprior that is normal in it."""
    assert isinstance(hyperprior, LogNormalDistance | Normal), "weak hyperpriors are normal or log-normal"
    return np.broadcast_to(np.asarray(hyperprior.scale, dtype=np.float64).reshape(-1), (size,))
