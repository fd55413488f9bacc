"""The end of a search: the best structures compared on all rows, and the winner fitted by the regressor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from orbitwise.estimators.engines import engine_for
from orbitwise.estimators.estimator import fit_quietly
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.kernels.spelling import build
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.selection.search.fitting import Fitted, fit, kills_constants
from orbitwise.selection.search.greedy import STEP_COST, Search, chosen_rows
from orbitwise.selection.search.hypotheses import Hypothesis, functional_of_claims, learned_claims, relocated

NUM_FINALISTS = 3
MOST_ROWS = 1_500
MOST_ROWS_TO_GROW = 600
FINAL_ITERATIONS = 100

PlainClaim = tuple[str, tuple[int, ...], float | None, bool]


class Refit(NamedTuple):
    """The regressor, the claims with what was learned, and whether time ended it before it converged."""

    estimator: InvariantGPRegressor
    claims: list[PlainClaim]
    is_cut_short: bool


def finalist(search: Search, best: Fitted, x: NDArray[np.float64], y: NDArray[np.float64]) -> Fitted:
    """The best of the leading structures on all rows, or on the most that exact inference takes."""
    rows = chosen_rows(len(x), MOST_ROWS, search.effort.seed)
    problem = replace(search.problem, x=x[rows], y=y[rows])
    leaders = sorted(search.tried.values(), key=_worth, reverse=True)[:NUM_FINALISTS]
    found = [fit([each.hypothesis], problem, FINAL_ITERATIONS) for each in (leaders or [best])]
    known = [each for each in found if each is not None]
    return max(known, key=_worth, default=best)


def grown_on_all_rows(search: Search, best: Fitted, x: NDArray[np.float64], y: NDArray[np.float64]) -> Fitted:
    """The search on a sample, gone on with all rows: what is small or short shows only there."""
    whole = replace(search, problem=replace(search.problem, x=x, y=y), tried={}, screened={})
    return whole.grow(best)


def _worth(fitted: Fitted) -> float:
    return fitted.score - STEP_COST * fitted.hypothesis.size


def refitted(
    hypothesis: Hypothesis,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    num_dims: int,
    is_over: Callable[[], bool] | None = None,
) -> Refit:
    """The hypothesis fitted by the regressor from the values it has, until `is_over`."""
    is_cut_short = False

    def stop(step: int, bound: float) -> None:
        nonlocal is_cut_short
        if is_over is not None and is_over():
            is_cut_short = True
            raise KeyboardInterrupt  # which keeps the best so far

    moved, width = relocated(hypothesis.expression, hypothesis.claims, num_dims)
    functional = functional_of_claims(hypothesis.claims, num_dims)
    is_exact = engine_for(len(x)) == "exact"
    estimator = InvariantGPRegressor(
        build(moved, width),
        None if functional.is_identity else functional,
        mean="zero" if kills_constants(hypothesis) else "constant",
        random_state=0,
        max_iterations=0 if is_exact else 200,
        callback=stop,
    )
    # the search itself says whether its winner converged, and whether time was up
    fit_quietly(estimator, x, y)
    if estimator.inference_ == "exact":
        noise = estimator.model_.latent.likelihood
        if hypothesis.noise is not None and isinstance(noise, Gaussian):
            with torch.no_grad():
                noise.raw_noise.fill_(math.log(max(hypothesis.noise, 1e-12)))
        # The search has learned the noise, which a first fit starts elsewhere: go on from there.
        is_cut_short = is_over is not None and is_over()
        fit_quietly(estimator.set_params(max_iterations=0 if is_cut_short else 200, warm_start=True), x, y)
    estimator.set_params(callback=None)
    claims = learned_claims(hypothesis.claims, estimator.functional_)
    plain = [(claim.kind, claim.columns, claim.value, claim.is_given) for claim in claims]
    return Refit(estimator, plain, is_cut_short)
