"""LaplacianSVC: a kernel machine smooth over the graph of neighbours (Belkin, Niyogi, Sindhwani: LapSVM)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, final

import numpy as np
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from torch import Tensor

from orbitwise.declarations import Field, Stored
from orbitwise.estimators.estimator import KernelDecisions, learning
from orbitwise.estimators.kernel_machine import Ground
from orbitwise.estimators.machine_fit import fit_classifier, label_loss, settle
from orbitwise.estimators.machine_inputs import Labelled, check_labelled, class_weights
from orbitwise.estimators.machine_rows import LaplacianRows
from orbitwise.losses import Loss, Squared, loss_of


@final
class LaplacianSVC(KernelDecisions, ClassifierMixin, BaseEstimator):
    """Classification by the least ½|f|² + C Σ ℓ(y f(x)) + strength fᵀLf, L the Laplacian of all points.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel, default=None
        None takes a Gaussian kernel of the `bandwidth`.
    num_neighbours : int, default=6
        Of every point in the graph; cross-validation chooses among the `neighbours` instead.
    weighting : {"heat", "binary"}, default="heat"
        Of the edges: by distance, or 1.
    normalized : bool, default=True
        Whether L is the normalised Laplacian.
    neighbours : sequence of int, default=(3, 6, 12)
        What strength="cross_validation" chooses the number of neighbours from.
    C, strength, loss, bandwidth, basis, class_weight, unlabeled_label, Cs, strengths,
    num_folds, random_state
        As in `InvariantSVC`; by default the loss is "squared_hinge", C is 10 and the strength 0.1.
        strength="evidence" needs loss="logistic" or "squared".

    Attributes
    ----------
    classes_, machine_, C_, strength_, bandwidth_, num_neighbours_, objective_, gap_, n_iter_, log_evidence_,
    evidence_kind_, cv_error_ : as in `InvariantSVC`.
    """

    image_shape = None
    invariance = None

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
        class_weight: str | dict[Any, float] | None = None,
        unlabeled_label: Any = None,
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

    @learning("objective_", "scale_")
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        unlabeled: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> LaplacianSVC:
        """Learn from labelled rows, and from the graph of all rows.

        A weight counts copies of a row, and 0 takes it out; a point that comes twice is one of the graph.
        """
        for count in (self.num_neighbours, *self.neighbours):
            if not isinstance(count, Integral) or count < 1:
                raise ValueError(f"Numbers of neighbours must be whole and at least 1, not {count!r}.")
        data = check_labelled(self, X, y, unlabeled, sample_weight)
        loss = label_loss(loss_of(self.loss), self.loss)
        weights = class_weights(self.class_weight, self.classes_, data.codes, data.weights)
        seed = int(check_random_state(self.random_state).randint(2**31))
        ground = settle(self, data, loss, weights, Squared(), seed)
        self.num_neighbours_ = ground.rows.num_neighbours  # pyright: ignore
        fit_classifier(self, ground, loss, data.codes, weights, Squared(), seed)
        return self

    def _rows(self, points: Tensor, bandwidth: float) -> LaplacianRows:
        return LaplacianRows.of(points, int(self.num_neighbours), self.weighting, self.normalized)

    def _grounds(self, ground: Ground, data: Labelled) -> list[Ground]:
        rows = [
            LaplacianRows.of(ground.points, count, self.weighting, self.normalized)
            for count in self.neighbours
        ]
        return [replace(ground, rows=each, _folded={}) for each in rows]
