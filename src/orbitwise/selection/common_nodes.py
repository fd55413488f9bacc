"""Exact evidence of candidates on common nodes, so that the choice of nodes cancels in differences.

All drawn candidates take the same Sobol sets, which none was fitted on, of as many nodes as the largest fit
took. What drawn candidates gained from half as many nodes says how much they may gain from more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from orbitwise.estimators.orbit_learning import OTHER_GAUSS, freeze_at, freeze_in_common, gauss_dimensions
from orbitwise.orbits.frozen import FrozenOrbit

HELD_OUT = (1, 2, 3, 4)
"""Sets of nodes that candidates are compared on. Fits take set 0; the next three say how sure a fit is."""


@final
@dataclass(frozen=True)
class CommonNodes:
    """So many nodes for every candidate, and the numbers of the sets; with `is_own` a candidate's own kind.

    That is for the only drawn candidate: Gauss's nodes, in one or two dimensions, are nearer to exact.
    """

    num_nodes: int
    sets: tuple[int, ...] = HELD_OUT
    is_own: bool = False

    def evidences(self, estimator: Any) -> tuple[tuple[float, ...], float]:
        """The evidence of a fitted estimator on every set of nodes, and what it gained from half as many."""
        if nodes_of(estimator) is None:
            return (estimator.log_evidence_,) * len(self.sets), 0.0
        values = self._on(estimator, self.num_nodes)
        return values, float(np.mean(values) - np.mean(self._on(estimator, max(1, self.num_nodes // 2))))

    def _on(self, estimator: Any, num_nodes: int) -> tuple[float, ...]:
        freeze = freeze_at if self.is_own else freeze_in_common
        return tuple(
            estimator._evidence_on(partial(freeze, num_nodes=num_nodes, scramble=number))
            for number in self.sets
        )


def common_nodes(estimators: Sequence[Any]) -> CommonNodes | None:
    """The nodes to compare fitted estimators on; None where nothing is drawn or some evidence is a bound."""
    drawn = [each for each in estimators if nodes_of(each) is not None]
    if not drawn or any(each.evidence_kind_ != "exact" for each in estimators):
        return None
    if not all(hasattr(each, "_evidence_on") for each in drawn):
        return None
    most = max(nodes_of(each) or 1 for each in drawn)
    if len(drawn) == 1 and gauss_dimensions(drawn[0].functional_):
        return CommonNodes(most, tuple(range(1, len(OTHER_GAUSS))), is_own=True)
    return CommonNodes(most)


def nodes_of(estimator: Any) -> int | None:
    """How many nodes a fit ended with; None where nothing was drawn."""
    functional = getattr(estimator, "functional_", None)
    parts = [] if functional is None else functional.modules()
    sizes = [len(each.nodes) for each in parts if isinstance(each, FrozenOrbit)]
    if not sizes:
        return None
    stages = getattr(estimator, "search_", [])
    return stages[-1]["num_nodes"] if stages else max(sizes)


def has_data(estimator: Any) -> bool:
    """Whether the training data are there, which are not stored with a model."""
    model = estimator._problem_ if hasattr(estimator, "_problem_") else estimator._model
    return len(model.x) > 0
