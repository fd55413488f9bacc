"""Greedy search over structures (after Duvenaud et al. 2013), with invariances among the steps.

All base kernels are fitted, and the best one is grown in steps. In a step, every neighbour is fitted for a
few iterations from the values of its parent, and the most promising ones are fitted to the end from several
starts. The best becomes the next parent as long as the score rises. At the end, parts that the score does not
need are removed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypedDict, final

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.means import ConstantMean, ZeroMean
from joblib import Parallel, delayed, effective_n_jobs
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from orbitwise.estimators.regression_model import TargetScale, standardisation
from orbitwise.functionals.functional import Atoms, Evaluation
from orbitwise.inference.linear_algebra import cholesky, gaussian_log_density, plus_diagonal
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.hyperparameters import JointHyperprior, parts_of
from orbitwise.inference.optimise.hyperpriors import WEAK_AMPLITUDE_SCALE, LogNormalDistance, weak_hyperpriors
from orbitwise.inference.optimise.training import Training, curvature_of, maximize
from orbitwise.inference.stored_rows import held_rows
from orbitwise.kernels.bases import CentredLinearKernel, children_of
from orbitwise.kernels.spectrum import Array
from orbitwise.kernels.spelling import Term, build, expression_of
from orbitwise.likelihoods.gaussian import NOISE_FLOOR, Gaussian
from orbitwise.process.double_sums import value_covariance
from orbitwise.process.process import Process
from orbitwise.selection.evidence import STEP, laplace_log_evidence
from orbitwise.selection.search.hypotheses import (
    Claim,
    Hypothesis,
    Key,
    first_hypotheses,
    functional_of_claims,
    in_input_columns,
    in_process_columns,
    learned_claims,
    neighbours,
    simplifications,
    start_from_data,
    starts_from_data,
    starts_from_parent,
    starts_with_line,
    with_one_more_claim,
)

FEW_ITERATIONS = 15
MOST_STARTS = 3
PATIENCE = 5
TOLERANCE = 0.01
"""A fit stops when its last `PATIENCE` iterations gained less than this many nats."""

STEP_COST = 3.0
"""The score that each base kernel or claim must gain to be accepted: it is one of about twenty that were
possible, and log 20 is about 3 nats."""

NUM_FINALISTS = 3
FINAL_ITERATIONS = 100
MOST_FINAL_ROWS = 1_500
MOST_ROWS_TO_GROW = 600

SAME_FOR_ALL = 209652396
"""Seeds the choice of rows and the first `STEADY_STARTS` starts, so that every search of the same data is the
same; the value is that of random_state=0 in earlier versions, whose results therefore remain."""
STEADY_STARTS = 2

Report = Callable[[str], None]
Option = tuple[Hypothesis, Callable[[], list[Hypothesis]]]
"""A hypothesis, and a function that makes its starts if the hypothesis is new."""


@final
@dataclass(frozen=True)
class SearchData:
    """The data of a search, the score, and the deadline on a clock that all processes share."""

    x: Array
    y: Array
    scoring: str = "bic"
    deadline: float = math.inf
    clock: Callable[[], float] = time.time

    def is_over(self) -> bool:
        """Whether the deadline has passed, so that no further evaluation may start."""
        return self.seconds_left() <= 0

    def seconds_left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - self.clock()

    def some_rows(self, most: int) -> SearchData:
        """At most `most` rows, drawn at random but the same for every search, in the order of the data."""
        if len(self.x) <= most:
            return self
        rows = np.sort(np.random.default_rng(SAME_FOR_ALL).choice(len(self.x), most, replace=False))
        return replace(self, x=self.x[rows], y=self.y[rows])


@final
@dataclass(frozen=True)
class Fitted:
    """A hypothesis with learned values, and its log likelihood and score for the original targets."""

    hypothesis: Hypothesis
    log_likelihood: float
    score: float
    num_parameters: int
    seconds: float
    converged: bool

    @property
    def worth(self) -> float:
        """The score minus the cost of all base kernels and claims."""
        return self.score - STEP_COST * self.hypothesis.size


@final
class HypothesisModel:
    """A hypothesis as a latent model of standardised targets, with weak hyperpriors and a learned constant.

    The constant is learned, because it need not be the mean of the targets: a linear kernel is zero at its
    centre, so that f equals the constant there. There is none if the functional cancels constants.
    """

    def __init__(self, hypothesis: Hypothesis, data: SearchData) -> None:
        self.hypothesis, num_dims = hypothesis, data.x.shape[1]
        moved, width = in_process_columns(hypothesis.expression, hypothesis.claims, num_dims)
        is_odd = hypothesis.cancels_constants
        mean = ZeroMean() if is_odd else ConstantMean().double()
        functional = functional_of_claims(hypothesis.claims, num_dims).double()
        likelihood = Gaussian(0.05 if hypothesis.noise is None else max(hypothesis.noise, 1e-12))
        self.latent = LatentModel(Process(mean, build(moved, width)), functional, likelihood)
        rows = Observations(Evaluation(), torch.tensor(data.x), torch.tensor(data.y)[:, None])
        scale, shift = standardisation(rows, True, not is_odd)
        self.target_scale = TargetScale(shift, scale, is_vector=True)
        self.observations = replace(rows, targets=self.target_scale.standardised(rows.targets))
        # k(mirrored x, mirrored x') = k(x, x') for stationary kernels
        mirrors = [claim.kind in ("mirror", "odd") for claim in hypothesis.claims]
        self.one_sided = len(mirrors) == 1 and all(mirrors) and bool(self.kernel.is_stationary)
        for line in [] if is_odd else _lines(self.kernel):
            line.centre.requires_grad_(False)  # c + w(x - a) is the same line for many pairs (a, c)
        with torch.no_grad():
            seen = self._atoms().points[:, 0, :].numpy()
            if isinstance(mean, ConstantMean):
                mean.constant = self._likely_constant()
        modules: dict[str, nn.Module] = {
            "likelihood": likelihood,
            "mean": mean,
            "functional": functional,
            "kernel": self.kernel,
        }
        self.hyperprior = JointHyperprior(parts_of(modules, {}), weak_hyperpriors(modules, seen))

    @property
    def kernel(self) -> Kernel:
        """The kernel of g."""
        return self.latent.process.kernel

    @property
    def constant(self) -> Tensor:
        """The constant mean of f, for standardised targets."""
        return next(self.latent.process.mean_module.parameters(), torch.zeros_like(self._targets[0]))

    @property
    def scale(self) -> float:
        """The scale of the targets."""
        return self.target_scale.scale.item()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All learned parameters."""
        return [part.raw for part in self.hyperprior.parts]

    @property
    def num_parameters(self) -> int:
        """The number of learned values, including the noise and the constant."""
        return self.hyperprior.dimension

    def log_likelihood(self) -> Tensor:
        """log p(y | θ) of the standardised targets."""
        return gaussian_log_density(self._covariance(), self._targets - self.constant)

    def log_joint(self) -> Tensor:
        """log p(y, θ), as a density in the learned coordinates."""
        z = torch.cat([parameter.reshape(-1) for parameter in self.parameters])
        return self.log_likelihood() + self.hyperprior.log_density(z)

    @torch.no_grad()
    def height(self) -> float:
        """log p(y, θ) at the present values; -∞ if it cannot be computed."""
        try:
            return self.log_joint().item()
        except ValueError:
            return -math.inf

    def climb(self, data: SearchData, iterations: int) -> Training | None:
        """Maximise log p(y, θ) until the deadline; None if it has passed already or if the start fails."""
        if data.is_over():
            return None

        def stop(values: list[float]) -> bool:
            return len(values) > PATIENCE and values[-1] - values[-1 - PATIENCE] < TOLERANCE

        try:
            return maximize(self.log_joint, self.parameters, iterations, stop=stop, is_over=data.is_over)
        except ValueError:
            return None

    def fitted(self, data: SearchData, training: Training, seconds: float) -> Fitted:
        """The hypothesis with the present values, and its score for the original targets."""
        count = len(data.y)
        jacobian = count * math.log(self.scale)
        with torch.no_grad():
            value = self.log_likelihood().item() - jacobian
        if data.scoring == "bic":
            score = value - 0.5 * self.num_parameters * math.log(count)
        else:
            score = self.log_evidence(training.value) - jacobian
        return Fitted(self.learned(), value, score, self.num_parameters, seconds, training.converged)

    def log_evidence(self, joint: float) -> float:
        """log ∫ p(y, θ) dθ by Laplace's method; the curvature is at least about that of the prior."""
        curvature = curvature_of(self.log_joint, self.parameters, STEP, central=True)
        # in units in which the priors have curvature 1
        hyperpriors = zip(self.hyperprior.parts, self.hyperprior.distributions.values(), strict=True)
        deviations = np.concatenate([_deviation(prior, part.size) for part, prior in hyperpriors])
        values = np.linalg.eigvalsh(curvature * deviations[:, None] * deviations)
        values = torch.from_numpy(np.maximum(values, 1.0 / WEAK_AMPLITUDE_SCALE))
        return laplace_log_evidence(joint, values) + float(np.log(deviations).sum())

    def learned(self) -> Hypothesis:
        """The hypothesis with the present values."""
        return Hypothesis(
            in_input_columns(expression_of(self.kernel, values=True, digits=17), self.hypothesis.claims),
            learned_claims(self.hypothesis.claims, self.latent.functional),
            self.latent.noise.item() - NOISE_FLOOR,
        )

    @torch.no_grad()
    def residuals(self) -> Array:
        """The standardised targets minus the posterior mean of f: σ²(K + σ²I)⁻¹(y - c)."""
        lower, _ = cholesky(self._covariance())
        weights = torch.cholesky_solve((self._targets - self.constant)[:, None], lower)[:, 0]
        return (self.latent.noise * weights).numpy()

    def _likely_constant(self) -> Tensor:
        """1ᵀK⁻¹y/(1ᵀK⁻¹1 + 1), the mode under its prior; 0 if K cannot be factorised at the start."""
        try:
            lower, _ = cholesky(self._covariance())
        except ValueError:
            return torch.zeros_like(self._targets[0])
        weights = torch.cholesky_solve(torch.ones_like(self.observations.targets), lower)[:, 0]
        return weights @ self._targets / (weights.sum() + 1)

    def _covariance(self) -> Tensor:
        matrix = value_covariance(self.kernel, self._atoms(), self.one_sided)
        return plus_diagonal(matrix, self.latent.noise)

    @property
    def _targets(self) -> Tensor:
        return self.observations.targets[:, 0]

    def _atoms(self) -> Atoms:
        atoms = self.latent.functional.atoms(held_rows(self.observations.x))
        assert isinstance(atoms, Atoms)
        return atoms


def _lines(kernel: Kernel) -> list[CentredLinearKernel]:
    """The linear kernels that are components by themselves."""
    if isinstance(kernel, AdditiveKernel):
        return [line for part in children_of(kernel) for line in _lines(part)]
    return [kernel] if isinstance(kernel, CentredLinearKernel) else []


def _deviation(hyperprior: Distribution, size: int) -> Array:
    """The standard deviation of each coordinate under a hyperprior that is normal in it."""
    assert isinstance(hyperprior, LogNormalDistance | Normal), "weak hyperpriors are normal or log-normal"
    return np.broadcast_to(np.asarray(hyperprior.scale, dtype=np.float64).reshape(-1), (size,))


def fit(starts: Sequence[Hypothesis], data: SearchData, max_iterations: int) -> Fitted | None:
    """Fit one structure: a few iterations from the best starts, then more from the best of these.

    None if the deadline has passed or if all starts fail. If the deadline passes during the fit, the present
    values are scored, unless that takes long.
    """
    began = time.perf_counter()
    if data.is_over():
        return None
    models = promising([HypothesisModel(start, data) for start in starts], data)
    few = max_iterations if len(models) == 1 else min(FEW_ITERATIONS, max_iterations)
    tried = [(model, training) for model in models if (training := model.climb(data, few))]
    if not tried:
        return None
    model, training = max(tried, key=lambda each: each[1].value)
    if few < max_iterations and not training.converged:
        training = model.climb(data, max_iterations - few) or training
    if data.scoring == "laplace" and data.is_over():
        return None  # the curvature would take many more evaluations
    return model.fitted(data, training, time.perf_counter() - began)


def promising(models: list[HypothesisModel], data: SearchData) -> list[HypothesisModel]:
    """The highest starts, one of them from the data alone, because those from a parent may mislead."""
    if len(models) <= MOST_STARTS:
        return models
    heights = [-math.inf if data.is_over() else model.height() for model in models]
    ranked = [models[i] for i in sorted(range(len(models)), key=lambda i: -heights[i])]
    from_data = [model for model in ranked if model.hypothesis.noise is None]
    first = ranked[: MOST_STARTS - 1]
    others = [model for model in (*from_data, *ranked) if all(model is not each for each in first)]
    return [*first, others[0]]


@final
@dataclass(frozen=True)
class Effort:
    """The numbers of steps, iterations and starts of a search; `seed` is for starts after the first two."""

    max_depth: int = 3
    screen_iterations: int = 15
    max_iterations: int = 150
    num_promising: int = 3
    num_restarts: int = 2
    n_jobs: int | None = None
    seed: int = 0

    def seeds(self) -> list[int | None]:
        """The seeds of the restarts: None for the usual start, then fixed ones, then those of this search."""
        drawn = [
            (SAME_FOR_ALL if number < STEADY_STARTS else self.seed) + 7919 * number
            for number in range(1, self.num_restarts)
        ]
        return [None, *drawn][: self.num_restarts]


class Record(TypedDict):
    """One fit of a search."""

    step: int
    stage: str
    structure: str
    score: float
    log_likelihood: float
    num_parameters: int
    seconds: float


def silent(_: str) -> None:
    """Report nothing."""


@final
@dataclass
class Search:
    """The state of a greedy search: the structures tried, and all fits so far.

    Attributes
    ----------
    data : SearchData
        The data on which structures are fitted.
    bases : sequence of Term
        The base kernels from which structures are made.
    claims : sequence of Claim
        Invariances that may be added to a structure.
    effort : Effort
        The numbers of steps, iterations and starts.
    tried, screened : dict
        The best fit of each structure that was fitted in full, or only for a few iterations.
    history : list of Record
        All fits, in order.
    """

    data: SearchData
    bases: Sequence[Term]
    claims: Sequence[Claim]
    effort: Effort
    report: Report = silent
    tried: dict[Key, Fitted] = field(default_factory=dict)
    screened: dict[Key, Fitted] = field(default_factory=dict)
    history: list[Record] = field(default_factory=list)
    step: int = 0

    def run(self) -> Fitted:
        """The best structure that was found."""
        x, y = self.data.x, self.data.y
        singles = first_hypotheses(self.bases, x.shape[1])
        best = self._advance([(each, partial(starts_from_data, each, None, x, y)) for each in singles], None)
        if best is None:
            raise TimeoutError(
                "The time limit passed before one kernel was fitted: allow more time, or use fewer rows."
            )
        if self.claims:
            leaders = sorted(self.tried.values(), key=lambda each: -each.score)[:2]
            options = [one for each in leaders for one in with_one_more_claim(each.hypothesis, self.claims)]
            best = _better_of(self._advance(self._started(options, y), best), best)
        return self.grow(best)

    def run_on(self, whole: SearchData) -> Fitted:
        """The best structure for all rows, searched for on the rows of this search."""
        best = self.run()
        if len(whole.x) == len(self.data.x):
            return best
        best = self.finalist(best, whole)
        return self.grown_on(whole, best) if len(whole.x) <= MOST_ROWS_TO_GROW else best

    def grow(self, best: Fitted) -> Fitted:
        """The best structure that can be reached from a fitted one."""
        for _ in range(self.effort.max_depth):
            if self.data.is_over():
                return best
            better = self._neighbour(best)
            if better is best:
                break
            best = better
        return self._simplified(best)

    def finalist(self, best: Fitted, whole: SearchData) -> Fitted:
        """The best of the leading structures on all rows, or on at most `MOST_FINAL_ROWS`."""
        data = whole.some_rows(MOST_FINAL_ROWS)
        leaders = sorted(self.tried.values(), key=lambda each: each.worth, reverse=True)[:NUM_FINALISTS]
        found = [fit([each.hypothesis], data, FINAL_ITERATIONS) for each in (leaders or [best])]
        return max((each for each in found if each), key=lambda each: each.worth, default=best)

    def grown_on(self, whole: SearchData, best: Fitted) -> Fitted:
        """Continue the search on all rows, because small or short effects do not show in a sample."""
        return replace(self, data=whole, tried={}, screened={}).grow(best)

    def _neighbour(self, best: Fitted, grows: bool = True) -> Fitted:
        """The best hypothesis one step away, or the present one if none is better."""
        left = HypothesisModel(best.hypothesis, self.data).residuals()
        options = neighbours(best.hypothesis, self.bases, self.claims, grows)
        return _better_of(self._advance(self._started(options, left), best), best)

    def _simplified(self, best: Fitted) -> Fitted:
        """The structure without needless parts, and with parts exchanged for better ones."""
        while not self.data.is_over():
            # a smaller structure may have been tried before, but from other values
            options = [(each, None) for each in simplifications(best.hypothesis)]
            smaller = self._started(options, self.data.y)
            better = _better_of(self._advance(smaller, best, again=True) if smaller else None, best)
            if better is best:
                better = self._neighbour(best, grows=False)
            if better is best:
                return best
            best = better
        return best

    def _advance(
        self,
        options: Sequence[Option],
        best: Fitted | None,
        again: bool = False,
    ) -> Fitted | None:
        """The best of the new hypotheses: all are screened, and the promising ones fitted in full."""
        new: dict[Key, list[Hypothesis]] = {}
        for hypothesis, starts in options:
            if (again or hypothesis.key not in self.tried) and not self.data.is_over():
                new.setdefault(hypothesis.key, []).extend(starts())
        self.step += 1
        screened = self._fit_all(list(new.values()), self.effort.screen_iterations, "screened")
        for key, found in zip(new, screened, strict=True):
            if found is not None:
                self.screened[key] = found
        ranked = sorted(
            (key for key in new if key in self.screened), key=lambda key: -self.screened[key].score
        )
        chosen = ranked[: self.effort.num_promising] if best is not None else ranked
        starts = [[self.screened[key].hypothesis, *self._restarts(key)] for key in chosen]
        finished = self._fit_all(starts, self.effort.max_iterations, "fitted")
        for key, found in zip(chosen, finished, strict=True):
            if found is not None and (key not in self.tried or found.score > self.tried[key].score):
                self.tried[key] = found
        known = [self.tried[key] for key in chosen if key in self.tried]
        # if time ran out after screening, the best screened fit is used
        known = known or [self.screened[key] for key in ranked[:1]]
        return max(known, key=lambda each: each.worth, default=None)

    def _started(self, options: Iterable[tuple[Hypothesis, Term | None]], left: Array) -> list[Option]:
        """Hypotheses and their new terms, as options that can make their starts."""
        return [(one, partial(self._starts, one, new, left)) for one, new in options]

    def _starts(self, hypothesis: Hypothesis, new: Term | None, left: Array) -> list[Hypothesis]:
        """Starts from the parent and from the data, because the parent may hide the new term."""
        x, y = self.data.x, self.data.y
        starts = starts_from_parent(hypothesis, new, x, y, left)
        if new is not None and new.name == "linear":
            starts += starts_with_line(hypothesis, new, x, y)
        return starts + starts_from_data(hypothesis, new, x, y)

    def _restarts(self, key: Key) -> list[Hypothesis]:
        hypothesis, x, y = self.screened[key].hypothesis, self.data.x, self.data.y
        return [start_from_data(hypothesis, x, y, seed) for seed in self.effort.seeds()]

    def _fit_all(
        self, starts: Sequence[Sequence[Hypothesis]], iterations: int, stage: str
    ) -> list[Fitted | None]:
        fits: Iterable[Fitted | None]
        # None takes what joblib.parallel_config says, of a cluster for example
        if effective_n_jobs(self.effort.n_jobs) == 1:  # pyright: ignore[reportArgumentType]
            fits = (fit(each, self.data, iterations) for each in starts)
        else:
            jobs = (delayed(fit)(each, self.data, iterations) for each in starts)
            fits = Parallel(n_jobs=self.effort.n_jobs, return_as="generator")(jobs)
        found: list[Fitted | None] = []
        for each in fits:
            found.append(each)
            if each is not None:
                self._record(each, stage)
        return found

    def _record(self, found: Fitted, stage: str) -> None:
        """Add one fit to the history, and report the best so far."""
        self.history.append(
            {
                "step": self.step,
                "stage": stage,
                "structure": str(found.hypothesis),
                "score": found.score,
                "log_likelihood": found.log_likelihood,
                "num_parameters": found.num_parameters,
                "seconds": found.seconds,
            }
        )
        best = max(row["score"] for row in self.history)
        left = self.data.seconds_left()
        remaining = "" if math.isinf(left) else f", {max(left, 0):.0f} s left"
        self.report(
            f"step {self.step}: {len(self.history)} fits, best {best:,.1f}{remaining}: {found.hypothesis}"
        )


def _better_of(one: Fitted | None, best: Fitted) -> Fitted:
    """The one of greater worth."""
    return best if one is None or one.worth <= best.worth else one
