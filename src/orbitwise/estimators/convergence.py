"""Whether learning came to its end, and what to do where it did not: one sentence for every estimator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from orbitwise.inference.orbit_search import INTERRUPTED, TIME_IS_OVER, USED_UP

ITERATIONS, DRAWN_ITERATIONS = 200, 40
FIRST_STEPS, MOST_STEPS = 400, 3000
"""The most stochastic steps with half of the inducing points, and with all of them, where None is given."""
ADVICE = {
    "gap": "raise max_iterations",
    "gain": "more inducing variables of this kind hardly help, so take bound='cg', or raise the tolerance",
    "complete": "take bound='cg', or raise the tolerance",
    "fixed": "raise num_inducing, take num_inducing='auto', or raise the tolerance",
    "max_inducing": "raise max_inducing or the tolerance, or take bound='cg'",
    "time_limit": "raise time_limit or the tolerance",
    "interrupted": "fit again, without interrupting it",
}
"""What narrows a bracket of the evidence, by why the search for inducing variables stopped."""


def iterations_of(estimator: Any) -> int:
    """The iterations that an estimator may take; None stands for fewer where the points of orbits are drawn.

    There they are those on each number of nodes.
    """
    if estimator.max_iterations is not None:
        return estimator.max_iterations
    return DRAWN_ITERATIONS if getattr(estimator.orbit_, "is_drawn", False) else ITERATIONS


def steps_of(estimator: Any) -> int:
    """The most stochastic steps that an estimator may take."""
    return FIRST_STEPS + MOST_STEPS if estimator.num_steps is None else estimator.num_steps


def shortfall(estimator: Any) -> str | None:
    """What a fitted estimator did not reach and which argument to raise, or None where all is well.

    With `max_iterations=0` nothing was to be learned, so nothing is missing.
    """
    certificate = getattr(estimator, "certificate_", None)
    # unknown after stochastic steps, which `partial_fit` documents
    if certificate is not None and math.isfinite(certificate.gap) and not certificate.is_met:
        return f"{certificate}; {ADVICE[certificate.stopped]}."
    if getattr(estimator, "stopped_", "complete") == "time_limit":
        return (
            f"The search was cut short by time_limit={estimator.time_limit:g}, after "
            f"{len(estimator.history_)} fits. {estimator.spelling_} is the best so far, and its "
            "hyperparameters may not have converged. Raise time_limit, or ask for less by max_depth, "
            "base_kernels, invariances, num_restarts or search_rows."
        )
    if getattr(estimator, "converged_", True):
        return None
    if not hasattr(estimator, "max_iterations"):
        return (
            "The hyperparameters of the structure that was found did not converge. Predictions use the best "
            "values found; InvariantGPRegressor(model.kernel_, max_iterations=1000) learns on from there."
        )
    if getattr(estimator, "inference_", "") == "variational":
        steps = steps_of(estimator)
        return (
            f"The stochastic steps ended before bound, kernel and ranges settled (num_steps={steps}): raise "
            "num_steps. Predictions use the last values."
        )
    if estimator.max_iterations == 0:
        return None
    if hasattr(estimator, "stopped_by_"):
        if estimator.stopped_by_ == INTERRUPTED:
            return (
                "The search for the ranges was interrupted, and the best so far is kept: fit again to finish."
            )
        return (
            f"The ranges of the orbit did not settle on {num_nodes_of(estimator)} nodes "
            f"({estimator.stopped_by_}): raise {argument_to_raise(estimator)}. Predictions use the best "
            "values found, and orbit_errors_ says how sure the ranges are."
        )
    return (
        f"The hyperparameters did not converge within max_iterations={iterations_of(estimator)}: raise "
        "max_iterations. Predictions use the best values found."
    )


def num_nodes_of(estimator: Any) -> int:
    """The nodes on which a search for ranges ended."""
    return estimator.search_[-1]["num_nodes"] if estimator.search_ else 0


def argument_to_raise(estimator: Any) -> str:
    """Which argument cut the learning of a fitted estimator short."""
    if getattr(estimator, "inference_", "") == "variational":
        return "num_steps"
    stopped_by = getattr(estimator, "stopped_by_", USED_UP)
    if stopped_by == USED_UP:
        return "max_iterations"
    if stopped_by == TIME_IS_OVER:
        return "max_seconds"
    return "max_nodes" if estimator.num_nodes is None else "num_nodes"


def fit_quietly(estimator: Any, *data: Any) -> Any:
    """Fit one of several estimators; `warn_of_shortfalls` then speaks for all of them at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(*data)


def warn_of_shortfalls(names: Sequence[str], fitted: Sequence[Any]) -> None:
    """One ConvergenceWarning, to the caller's caller, for all estimators that did not come to their end."""
    reasons = [shortfall(model) for model in fitted]
    missing = [name for name, reason in zip(names, reasons, strict=True) if reason is not None]
    if missing:
        warnings.warn(
            f"{len(missing)} of {len(fitted)} fits ended too early ({', '.join(missing)}), so that their "
            f"evidence may still rise. {next(reason for reason in reasons if reason is not None)}",
            ConvergenceWarning,
            stacklevel=3,
        )
