"""LaplacianSVC: a kernel machine smooth over the graph of neighbours (Belkin, Niyogi, Sindhwani: LapSVM)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, final

import numpy as np
from gpytorch.kernels import Kernel
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from orbitwise.declarations import Field, Stored
from orbitwise.estimators.machines.machine import MachineClassifier
from orbitwise.estimators.machines.task import InvarianceRows, MachineTask, laplacian_rows
from orbitwise.losses import Loss


@final
class LaplacianSVC(MachineClassifier):
    """Classification by the f of least ½|f|² + C Σ ℓ(y f(x)) + strength fᵀLf, L the Laplacian of all points.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel, default=None
        None takes a Gaussian kernel of the `bandwidth`.
    num_neighbours : int, default=6
        The number of neighbours of every point in the graph, unless cross-validation chooses it.
    weighting : {"heat", "binary"}, default="heat"
        The weights of edges: exp(-d²/2w²) at distance d, w the mean distance of neighbours, or 1.
    normalized : bool, default=True
        Whether L is the normalised Laplacian.
    neighbours : sequence of int, default=(3, 6, 12)
        The numbers of neighbours that strength="cross_validation" chooses from.
    C, strength, loss, bandwidth, basis, class_weight, unlabeled_label, Cs, strengths,
    num_folds, random_state
        As in `InvariantSVC`, with other defaults. strength="evidence" needs loss="logistic" or "squared".

    Attributes
    ----------
    classes_, machine_, C_, strength_, bandwidth_, num_neighbours_, objective_, gap_, n_iter_, log_evidence_,
    evidence_kind_, cv_error_ : as in `InvariantSVC`.
    """

    image_shape = None
    num_neighbours_: int

    stored = Stored(fitted={"num_neighbours_": Field((int,), least=1)})

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        num_neighbours: int = 6,
        weighting: str = "heat",
        normalized: bool = True,
        C: float = 10.0,
        strength: float | str = 0.1,
        loss: str | Loss = "squared_hinge",
        bandwidth: float | str = "median",
        basis: str = "bias",
        class_weight: str | Mapping[Any, float] | None = None,
        unlabeled_label: object = None,
        Cs: Sequence[float] | NDArray[Any] | None = None,
        strengths: Sequence[float] | NDArray[Any] | None = None,
        neighbours: Sequence[int] = (3, 6, 12),
        num_folds: int = 5,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.num_neighbours = num_neighbours
        self.weighting = weighting
        self.normalized = normalized
        self.C = C
        self.strength = strength
        self.loss = loss
        self.bandwidth = bandwidth
        self.basis = basis
        self.class_weight = class_weight
        self.unlabeled_label = unlabeled_label
        self.Cs = Cs
        self.strengths = strengths
        self.neighbours = neighbours
        self.num_folds = num_folds
        self.random_state = random_state

    def _check_settings(self) -> None:
        super()._check_settings()
        for count in (self.num_neighbours, *self.neighbours):
            if not isinstance(count, Integral) or count < 1:
                raise ValueError(f"Numbers of neighbours must be whole and at least 1, not {count!r}.")

    def _rows(self, points: Float[Tensor, "t d"], bandwidth: float) -> InvarianceRows:
        return self._graph_rows(points, self.num_neighbours)

    def _graph_rows(self, points: Float[Tensor, "t d"], num_neighbours: int) -> InvarianceRows:
        return laplacian_rows(points, int(num_neighbours), self.weighting, self.normalized)

    def _of_folds(self, task: MachineTask) -> list[MachineTask]:
        return [replace(task, rows=self._graph_rows(task.points, count)) for count in self.neighbours]

    def _choose(self, task: MachineTask, seed: int) -> MachineTask:
        chosen = super()._choose(task, seed)
        assert chosen.rows is not None
        assert chosen.rows.graph is not None
        self.num_neighbours_ = chosen.rows.graph.num_neighbours
        return chosen

    def _work(self, task: MachineTask) -> tuple[str, int, list[str]]:
        _, count, _ = super()._work(task)
        if self.strength != "cross_validation":
            return "the graph of", count, ["pass fewer unlabelled rows"]
        cheaper = ["pass fewer unlabelled rows", "try fewer numbers of neighbours"]
        return "the graph of", len(self.neighbours), cheaper
