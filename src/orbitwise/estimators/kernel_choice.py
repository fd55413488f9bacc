"""Which kernel a classifier takes where none is given: its shape, and units in which columns are measured.

Candidates are learned on some hundred rows by the leave-one-out probability of their labels, and compared by
it, less ½ log n per hyperparameter that a candidate has beyond the simplest one (Schwarz): lengthscales of
columns must earn their keep.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, final

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.functional import Evaluation
from orbitwise.inference.exact import ExactEvidence
from orbitwise.inference.fit_result import FitResult
from orbitwise.inference.held_out_labels import HeldOutLabels
from orbitwise.inference.linear_algebra import NOT_COMPUTABLE
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.training import maximize
from orbitwise.inference.stored_rows import Inputs, held_rows
from orbitwise.kernels.bases import default_kernel, log_positive, typical_distance, typical_spread
from orbitwise.kernels.scaled_columns import ScaledColumnsKernel
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.process.process import Process

CHOICE_ROWS = 500
"""Rows on which kernels are compared."""
LEARNED_ROWS = 1500
"""Rows up to which all of them learn by held-out labels; beyond, an iteration takes seconds."""
FEWEST_ROWS = 20
"""Below this many rows, leave-one-out is too uncertain to choose by."""
MOST_COLUMNS = 20
"""Columns up to which a lengthscale per column is tried."""
ITERATIONS = 50
NOISE_START = 0.1
"""In units of the variance of f."""
LONG = 4.0
"""Where lengthscales of tables start, in typical distances. Few held-out labels often allow for two,
of which the longer one, under which f is nearly linear, predicts better."""
SHAPES: dict[str, Callable[..., Kernel]] = {
    "RBF": RBFKernel,
    "Matérn-5/2": partial(MaternKernel, 2.5),
    "rational quadratic": RQKernel,
}
OTHER_SHAPE = 1.0
"""Nats by which another shape than the RBF must be better."""


@final
class Metric(NamedTuple):
    """How distances between rows are measured: the units of columns, and where lengthscales start.

    `cost` counts the hyperparameters that were learned in addition to one lengthscale.
    """

    name: str
    units: Tensor | None
    lengthscale: Tensor
    cost: int

    def kernel(self, shape: str) -> Kernel:
        """A scaled kernel of this shape with one lengthscale."""
        options = {"alpha_constraint": log_positive(1.0)} if shape == "rational quadratic" else {}
        base = SHAPES[shape](lengthscale_constraint=log_positive(), **options).to(self.lengthscale)
        base.lengthscale = self.lengthscale
        kernel = base if self.units is None else ScaledColumnsKernel(base, self.units)
        scaled = ScaleKernel(kernel, outputscale_constraint=log_positive()).to(self.lengthscale)
        scaled.outputscale = 1.0
        return scaled


@final
class Candidate(NamedTuple):
    """A kernel learned on some rows, with noise that goes with it, and the log probability that chooses.

    `log_probability` is that of the held-out labels, less the number of hyperparameters beyond a lengthscale.
    """

    name: str
    metric: Metric
    kernel: Kernel
    noise: float
    log_probability: float


@final
@dataclass(frozen=True)
class KernelChoice:
    """A kernel and noise learned by held-out labels of `num_rows` rows, and in words what was tried."""

    kernel: Kernel
    noise: float
    num_rows: int
    text: str

    @classmethod
    def of(cls, candidates: Sequence[Candidate], num_rows: int) -> KernelChoice:
        """The best of the candidates."""
        best, *others = sorted(candidates, key=lambda each: -each.log_probability)
        behind = [f"{each.name} {each.log_probability - best.log_probability:.1f}" for each in others]
        text = f"{best.name}, by the held-out labels of {num_rows:,} rows"
        text += f" ({'; '.join(behind)} nats)" if behind else ""
        return cls(best.kernel, best.noise, num_rows, text)

    @classmethod
    def kept(cls, previous: LatentModel, text: str | None) -> KernelChoice | None:
        """What an earlier fit chose, to be learned further; None where its noise is not Gaussian."""
        if text is None or not isinstance(previous.likelihood, Gaussian):
            return None
        return cls(copy.deepcopy(previous.process.kernel), previous.noise.item(), 0, text)

    def start(self) -> Kernel:
        """A kernel to learn from here."""
        return copy.deepcopy(self.kernel)

    def predicting(
        self, result: FitResult, model: LatentModel, rows: Observations, labels: Int[Tensor, " n"]
    ) -> FitResult:
        """The exact fit with the posterior under kernel and noise of held-out labels, of all rows.

        The evidence stays what it was at its own maximum.
        """
        likelihood = model.likelihood
        assert isinstance(result.objective, ExactEvidence)
        assert isinstance(likelihood, Gaussian)
        model.process.kernel.load_state_dict(self.kernel.state_dict())
        with torch.no_grad():
            likelihood.raw_noise.fill_(math.log(max(self.noise - likelihood.floor, likelihood.floor)))
        if len(rows) > self.num_rows:
            HeldOutLabels(model, rows, labels).learn(ITERATIONS)
        with torch.no_grad():
            return replace(result, posterior=result.objective.posterior(), noise=model.noise.item())


def choose_kernel(
    x: Inputs, labels: Int[Tensor, " n"], targets: Float[Tensor, "n c"], is_table: bool
) -> KernelChoice | None:
    """The kernel under which held-out labels of some rows are most probable; None if that cannot be computed.

    `targets` are one-hot codes. Columns of tables are tried in units of their spread, few of them also in
    units that the evidence finds. Pixels and samples have one unit.
    """
    if len(x) < FEWEST_ROWS:
        return None
    # the same rows for every seed, because exact inference draws nothing
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:CHOICE_ROWS].sort().values
    labels, rows = labels[order], Observations(Evaluation(), x[order], targets[order])
    candidates: list[Candidate] = []

    for metric in _metrics(rows, is_table):
        candidates += _learned("RBF", metric, rows, labels)
    if not candidates:
        return None
    metric = max(candidates, key=lambda each: each.log_probability).metric
    for shape in list(SHAPES)[1:]:
        candidates += _learned(shape, metric, rows, labels)
    return KernelChoice.of(candidates, len(order))


def _metrics(rows: Observations, is_table: bool) -> list[Metric]:
    x = held_rows(rows.x)
    typical = typical_distance(x, separate=False)
    if not is_table:
        return [Metric("", None, typical, 0)]
    one = LONG * x.new_tensor(x.shape[1] ** 0.5)
    found = [
        Metric("", None, LONG * typical, 0),
        Metric(", columns in units of their spread", typical_spread(x), one, 0),
    ]
    if 1 < x.shape[1] <= MOST_COLUMNS:
        kernel = default_kernel(x, separate_lengthscales=True)
        model = LatentModel(Process(None, kernel), Evaluation(), Gaussian(NOISE_START))
        try:
            maximize(ExactEvidence(model, [rows]), model.learned, ITERATIONS)
        except NOT_COMPUTABLE:
            return found
        units = base_of(kernel).lengthscale.detach()[0]
        long = torch.full_like(one, LONG)
        found.append(Metric(", one lengthscale per column", units, long, x.shape[1] - 1))
    return found


def base_of(kernel: Kernel) -> Kernel:
    """The kernel under a scale."""
    assert isinstance(kernel, ScaleKernel)
    return kernel.base_kernel


def _learned(shape: str, metric: Metric, rows: Observations, labels: Int[Tensor, " n"]) -> list[Candidate]:
    """The candidate, unless its probability cannot be computed."""
    model = LatentModel(Process(None, metric.kernel(shape)), Evaluation(), Gaussian(NOISE_START))
    try:
        objective = HeldOutLabels(model, rows, labels)
        objective.learn(ITERATIONS)
    except NOT_COMPUTABLE:
        return []
    # ½ log n nats per hyperparameter that was learned beyond a lengthscale (Schwarz)
    cost = 0.5 * math.log(len(labels)) * (metric.cost + (shape == "rational quadratic"))
    cost += OTHER_SHAPE * (shape != "RBF")
    value = -len(labels) * objective.loss() - cost
    return [Candidate(shape + metric.name, metric, model.process.kernel, model.noise.item(), value)]
