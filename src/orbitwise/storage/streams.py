"""Recipes of what sparse regression holds: certificates, sums over rows, and the iterative posterior.

The mean of an iterative posterior is a sum over all training rows, so it includes their inputs.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

from torch import Tensor

from orbitwise.estimators.streaming import Stream
from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Functional
from orbitwise.inference.automatic import REASONS, Certificate, Stage
from orbitwise.inference.conjugate_gradients import Solution
from orbitwise.inference.iterative import IterativePosterior
from orbitwise.inference.totals import Observations, Totals
from orbitwise.inference.variational import SparsePosterior
from orbitwise.inference.whitened import Whitened
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.process.process import Process
from orbitwise.storage.posteriors import MAYBE_TENSOR, TENSOR, require
from orbitwise.storage.recipes import Field, Recipe, table_of

NUMBER = Field((int, float))
COUNT = Field(int)


def _check_stream(stream: Stream) -> None:
    size, totals = len(stream.lower), stream.totals
    inducing = stream.inducing
    count = inducing.num_rows if isinstance(inducing, Atoms) else len(inducing)
    require(stream.lower.shape == (count, count), "a factor of other inducing variables")
    require(totals is not None or stream.q is not None, "neither totals nor q")
    if totals is not None:
        require(totals.gram.shape == (size, size), "totals of other inducing variables")
        require(
            totals.product.dim() == 2 and len(totals.product) == size, "totals of other inducing variables"
        )
    if stream.q is not None:
        require(len(stream.q.mean) == size, "a q of other inducing variables")


def _check_observations(rows: Observations) -> None:
    require(rows.x.dim() == rows.targets.dim() == 2, "rows that are no matrix")
    require(len(rows.x) == len(rows.targets), "targets of other rows")
    require(rows.weight is None or rows.weight.shape == rows.x.shape[:1], "weights of other rows")


def _check_iterative(posterior: IterativePosterior) -> None:
    require(posterior.solution.vectors.shape == posterior.rows.targets.shape, "a solution of other rows")
    require(posterior.noise.dim() == 0, "noise that is no number")


def _iterative(**arguments: Any) -> IterativePosterior:
    return IterativePosterior(preconditioner=None, variance="sparse", **arguments)


def _refuse_iterative(posterior: Any) -> str | None:
    if posterior.preconditioner is None:
        return None
    return "a posterior with a solve for every query cannot be stored; condition with variance='sparse'."


STREAMS = table_of(
    Recipe(
        Stage,
        {"num_inducing": COUNT, "lower": NUMBER, "upper": NUMBER, "seconds": NUMBER, "iterations": COUNT},
    ),
    Recipe(
        Certificate,
        {
            "lower": NUMBER,
            "upper": NUMBER,
            "num_inducing": COUNT,
            "num_rows": COUNT,
            "tolerance": NUMBER,
            "stopped": Field(str),
            "history": Field(list, each=Stage),
        },
        check=lambda certificate: require(certificate.stopped in REASONS, "an unknown reason"),
    ),
    Recipe(
        Totals,
        {
            "gram": TENSOR,
            "product": TENSOR,
            "square": TENSOR,
            "trace": TENSOR,
            "slack": TENSOR,
            "count": COUNT,
            "log_weight": TENSOR,
        },
    ),
    Recipe(
        Stream,
        {
            "process": Field(Process),
            "functional": Field(Functional),
            "likelihood": Field(Gaussian),
            "inducing": Field((Tensor, Atoms)),
            "sources": MAYBE_TENSOR,
            "lower": TENSOR,
            "totals": Field((Totals, NoneType)),
            "merged": NUMBER,
            "num_rows": NUMBER,
            "q": Field((Whitened, NoneType)),
            "age": COUNT,
        },
        check=_check_stream,
    ),
    Recipe(
        Observations,
        {"functional": Field(Functional), "x": TENSOR, "targets": TENSOR, "weight": MAYBE_TENSOR},
        check=_check_observations,
    ),
    Recipe(
        Solution,
        {
            "vectors": TENSOR,
            "residual": TENSOR,
            "lower": NUMBER,
            "upper": NUMBER,
            "iterations": COUNT,
            "converged": Field(bool),
        },
    ),
    Recipe(
        IterativePosterior,
        {
            "sparse": Field(SparsePosterior),
            "rows": Field(Observations),
            "noise": TENSOR,
            "solution": Field(Solution),
            "max_iterations": COUNT,
        },
        _iterative,
        check=_check_iterative,
        refuse=_refuse_iterative,
    ),
)
