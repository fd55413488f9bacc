"""Recipes of what sparse regression holds: certificates, sums over rows, and the iterative posterior.

The mean of an iterative posterior is a sum over all training rows, so it includes their inputs.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

from torch import Tensor

from orbitwise.estimators.sparse_regressor import Stream
from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Functional
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse.certificate import REASONS, Certificate, Stage
from orbitwise.inference.sparse.iterative import IterativePosterior, Solution
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.sparse.totals import Totals
from orbitwise.inference.sparse.whitened import Whitened
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.process.process import Process
from orbitwise.storage.factors import check_factor
from orbitwise.storage.posteriors import MAYBE_NUMBERS, NUMBERS
from orbitwise.storage.recipes import RECORD, SMALLEST, Field, Recipe, is_plain_numbers, require, table_of

COUNT = Field(int, least=0, most=2**53)


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
        require(bool(totals.gram.diagonal().ge(0).all()), "totals that no rows have")
        sums = (totals.square, totals.trace, totals.slack, totals.log_weight)
        require(all(each.dim() == 0 for each in sums), "totals that are no numbers")
    if stream.q is not None:
        require(len(stream.q.mean) == size, "a q of other inducing variables")
    check_factor(stream.lower)


def _check_observations(rows: Observations) -> None:
    require(rows.x.dim() == rows.targets.dim() == 2, "rows that are no matrix")
    require(len(rows.x) == len(rows.targets), "targets of other rows")
    require(min(*rows.x.shape, *rows.targets.shape) > 0, "no rows")
    weight = rows.weight
    require(weight is None or weight.shape == rows.x.shape[:1], "weights of other rows")
    require(weight is None or is_plain_numbers(weight, SMALLEST), "weights that are not positive")


def _check_iterative(posterior: IterativePosterior) -> None:
    require(posterior.solution.vectors.shape == posterior.rows.targets.shape, "a solution of other rows")
    require(posterior.noise.dim() == 0, "noise that is no number")
    require(is_plain_numbers(posterior.noise, SMALLEST), "noise out of range")
    outputs = posterior.solution.vectors.shape[1]
    require(posterior.sparse.q.mean.shape[1] == outputs, "a solution of other outputs")


def _iterative(**arguments: Any) -> IterativePosterior:
    return IterativePosterior(preconditioner=None, variance="sparse", **arguments)


def _refuse_iterative(posterior: Any) -> str | None:
    if posterior.preconditioner is None:
        return None
    return "a posterior with a solve for every query cannot be stored; condition with variance='sparse'."


STREAMS = table_of(
    Recipe(
        Stage,
        {"num_inducing": COUNT, "lower": RECORD, "upper": RECORD, "seconds": RECORD, "iterations": COUNT},
    ),
    Recipe(
        Certificate,
        {
            "lower": RECORD,
            "upper": RECORD,
            "num_inducing": COUNT,
            "num_rows": COUNT,
            "tolerance": RECORD,
            "stopped": Field(str),
            "history": Field(list, each=Stage),
        },
        check=lambda certificate: require(certificate.stopped in REASONS, "an unknown reason"),
    ),
    Recipe(
        Totals,
        {
            "gram": NUMBERS,
            "product": NUMBERS,
            "square": NUMBERS,
            "trace": NUMBERS,
            "slack": NUMBERS,
            "count": COUNT,
            "log_weight": NUMBERS,
        },
    ),
    Recipe(
        Stream,
        {
            "process": Field(Process),
            "functional": Field(Functional),
            "likelihood": Field(Gaussian),
            "inducing": Field((Tensor, Atoms)),
            "sources": MAYBE_NUMBERS,
            "lower": NUMBERS,
            "totals": Field((Totals, NoneType)),
            "merged": Field((int, float)),
            "num_rows": Field((int, float), least=0, most=2**53),
            "q": Field((Whitened, NoneType)),
            "age": COUNT,
        },
        check=_check_stream,
    ),
    Recipe(
        Observations,
        {"functional": Field(Functional), "x": NUMBERS, "targets": NUMBERS, "weight": MAYBE_NUMBERS},
        check=_check_observations,
    ),
    Recipe(
        Solution,
        {
            "vectors": NUMBERS,
            "residual": NUMBERS,
            "lower": RECORD,
            "upper": RECORD,
            "iterations": COUNT,
            "converged": Field(bool),
        },
    ),
    Recipe(
        IterativePosterior,
        {
            "sparse": Field(SparsePosterior),
            "rows": Field(Observations),
            "noise": NUMBERS,
            "solution": Field(Solution),
            "max_iterations": COUNT,
        },
        _iterative,
        check=_check_iterative,
        refuse=_refuse_iterative,
    ),
)
