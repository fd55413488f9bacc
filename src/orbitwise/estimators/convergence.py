"""Whether learning converged, and if not, which argument to raise.

`learning` decorates methods that fit, and gives the ConvergenceWarning.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

import torch
from sklearn.exceptions import ConvergenceWarning

from orbitwise.estimators.engines import FIRST_STEPS, MOST_STEPS
from orbitwise.estimators.sharing import Call, shared
from orbitwise.estimators.validation import require_finite
from orbitwise.inference.optimise.orbit_search import USED_UP
from orbitwise.inference.optimise.training import INTERRUPTED, OUT_OF_MEMORY, TIME_IS_OVER
from orbitwise.inference.processes import is_launched
from orbitwise.inference.sparse import climb

P = ParamSpec("P")
R = TypeVar("R")
TOLD: WeakSet[object] = WeakSet()
"""Estimators that gave a ConvergenceWarning; no attribute of theirs, because it is not part of the model."""


def learning(*results: str, once: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For methods that fit: they work under `torch.no_grad()` and `torch.inference_mode()` too.

    Several processes share the fit where they can. The attributes called `results` must be finite afterwards.
    A ConvergenceWarning says if learning did not converge; with `once`, for methods that take one batch after
    the other, each estimator gives it only once.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def fit(*arguments: P.args, **named: P.kwargs) -> R:
            estimator, call = arguments[0], Call(method.__name__, arguments[1:], named)
            is_shared = is_launched() or "_processes" in vars(estimator)
            sharing = shared(estimator, call) if is_shared else nullcontext(True)
            with sharing as is_first, torch.inference_mode(False), torch.enable_grad():
                fitted = method(*arguments, **named)
            for name in results:
                require_finite(getattr(estimator, name, None), f"{name} is {{}} after {method.__name__}")
            reason = shortfall(estimator)
            if reason is not None and not (once and estimator in TOLD):
                TOLD.add(estimator)
                if is_first:
                    warnings.warn(reason, ConvergenceWarning, stacklevel=2)
            elif reason is None and not once:
                TOLD.discard(estimator)
            return fitted

        return fit

    return decorate


ITERATIONS, DRAWN_ITERATIONS = 200, 40
ADVICE = {
    "gap": "raise max_iterations",
    "gain": "more inducing variables of this kind hardly help, so take bound='cg', or raise the tolerance",
    "complete": "take bound='cg', or raise the tolerance",
    "fixed": "raise num_inducing, take num_inducing='auto', or raise the tolerance",
    "max_inducing": "raise max_inducing or the tolerance, or take bound='cg'",
    "time_limit": "raise max_seconds or the tolerance",
    "interrupted": "fit again, without interrupting it",
}
"""What narrows a bracket of the evidence, by why the search for inducing variables stopped."""


CURES = {
    climb.OUT_OF_TIME: "raise max_seconds",
    climb.TOO_LARGE: "raise max_memory, free some memory, or use a device with more",
    climb.FAILED: "set num_inducing={num_inducing} to use this many without a warning",
    INTERRUPTED: "fit again, without interrupting it",
}
"""What lets inducing points climb further, by why they did not."""


def iterations_of(estimator: Any) -> int:
    """The iterations that an estimator may take; by default fewer if points of orbits are drawn.

    For drawn orbits they count anew for each number of nodes.
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
            f"The search was cut short by max_seconds={estimator.max_seconds:g}, after "
            f"{len(estimator.history_)} fits. {estimator.spelling_} is the best so far, and its "
            "hyperparameters may not have converged. Raise max_seconds, or ask for less by max_depth, "
            "base_kernels, invariances, num_restarts or search_rows."
        )
    if getattr(estimator, "converged_", True):
        return _why_no_more_inducing(estimator)
    stopped_by = getattr(estimator, "stopped_by_", "")
    if stopped_by == INTERRUPTED:
        return "The fit was interrupted, and the best so far is kept: fit again to finish."
    if stopped_by == TIME_IS_OVER and not hasattr(estimator, "search_"):
        return (
            f"Learning was cut short by max_seconds={estimator.max_seconds:g}, before it converged: raise "
            "max_seconds. Predictions use the best values found."
        )
    if not hasattr(estimator, "max_iterations"):
        return (
            "The hyperparameters of the structure that was found did not converge. Predictions use the best "
            "values found; InvariantGPRegressor(model.kernel_, max_iterations=1000) continues from there."
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
        if estimator.stopped_by_ == OUT_OF_MEMORY:
            nodes = num_nodes_of(estimator)
            return (
                f"Memory ran out on more than {nodes} nodes of the orbit. The ranges found on {nodes} nodes "
                f"are kept: set num_nodes={nodes}, fit fewer rows, or use inference='collapsed' or "
                "'variational'."
            )
        return (
            f"The ranges of the orbit did not converge on {num_nodes_of(estimator)} nodes "
            f"({estimator.stopped_by_}): raise {argument_to_raise(estimator)}. Predictions use the best "
            "values found, and orbit_errors_ gives the standard errors of the ranges."
        )
    return (
        f"The hyperparameters did not converge within max_iterations={iterations_of(estimator)}: raise "
        "max_iterations. Predictions use the best values found."
    )


def _why_no_more_inducing(estimator: Any) -> str | None:
    """What cut the climb of the inducing points short, where something did."""
    reason = getattr(estimator, "inducing_stopped_by_", climb.ENOUGH)
    if reason not in climb.CUT_SHORT:
        return None
    count = estimator.num_inducing_
    return (
        f"Predictions use {count:,} inducing points. More may predict better, but {climb.REASONS[reason]}: "
        f"{CURES[reason].format(num_inducing=count)}."
    )


def num_nodes_of(estimator: Any) -> int:
    """The nodes on which the answer of a search for ranges was found."""
    stages = estimator.search_  # alone in files of earlier versions; the last may have been cut short
    return getattr(estimator, "_num_nodes", stages[-1]["num_nodes"] if stages else 0)


def argument_to_raise(estimator: Any) -> str:
    """Which argument cut the learning of a fitted estimator short."""
    stopped_by = getattr(estimator, "stopped_by_", USED_UP)
    if getattr(estimator, "inference_", "") == "variational" and stopped_by != TIME_IS_OVER:
        return "num_steps"
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
