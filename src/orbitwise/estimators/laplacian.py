"""LaplacianSVC: a kernel machine smooth over the graph of neighbours (Belkin, Niyogi, Sindhwani: LapSVM)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal, final

import numpy as np
from gpytorch.kernels import Kernel
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from orbitwise.declarations import Field, Stored
from orbitwise.estimators.machines.machine import MachineClassifier
from orbitwise.estimators.machines.task import (
    InvarianceRows,
    MachineTask,
    laplacian_rows,
    median_distance,
    neighbour_distance,
)
from orbitwise.losses import Loss


@final
class LaplacianSVC(MachineClassifier):
    """Classification from few labels by a function that is smooth over the graph of neighbours.

    It is the f of least ½|f|² + C Σ ℓ(y f(x)) + strength fᵀLf, where L is the Laplacian of the graph of all
    points, labelled or not (Belkin, Niyogi and Sindhwani 2006): classes are told apart where points are few.

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
    C : float or "auto", default="auto"
        The weight of the labels. Lower it where labels may be wrong. "auto" is chosen together with the
        strength; if the strength is a number, C is 10.
    strength : float, "auto", "evidence" or "cross_validation", default="auto"
        The weight of the graph; 0 is a support vector machine. "auto" takes 1 unless another strength, C or
        bandwidth predicts each label from all others with a clearly greater probability; it needs no random
        numbers. "cross_validation" chooses the strength with C and the number of neighbours by held-out
        labels; "evidence", which needs loss="logistic" or "squared", by the evidence of the labels.
    loss : str or Loss, default="squared_hinge"
        The loss of labels: "logistic", "hinge", "squared_hinge", "squared", or a loss with its own width.
    bandwidth : float, "auto" or "median", default="auto"
        The width of the Gaussian kernel; "median" is the median distance of all points, which blurs clusters
        of curved shape. "auto" is the median distance from a point to the last of its neighbours in the
        graph, or twice that where strength="auto" finds it better, but at most the median distance.
    basis : {"none", "bias", "linear"}, default="none"
        Functions that are not penalised. A bias tends to follow the larger class if labels are few.
    offset : {"auto", "none"}, default="auto"
        A constant that is added to decisions where strength="auto". The labels tell how common a class can be
        among the points without a label, and a function learned from few labels may be far from that. "auto"
        is zero or the least constant that brings the share of each class to within one standard deviation of
        what the labels tell. "none" is zero: take it if labels were not drawn at random, for example if each
        class was given as many. With a `class_weight` it is zero, too.
    class_weight : None, "balanced" or dict, default=None
        "balanced" gives all classes the same total weight; a dict holds a factor per class.
    unlabeled_label : object, default=None
        The value of y that means "no label". None means that every value is a class.
    Cs : sequence of float, default=None
        The values of C to choose from where `strength` names a method; None takes a wide grid.
    strengths : sequence of float, default=None
        The strengths to choose from where `strength` names a method; None takes a wide grid.
    neighbours : sequence of int, default=(3, 6, 12)
        The numbers of neighbours that strength="cross_validation" chooses from.
    num_folds : int, default=5
        The number of folds of the cross-validation, at most the number of labels of the smallest class.
    random_state : int, default=None
        The seed of the folds.

    Attributes
    ----------
    classes_ : ndarray
        The classes.
    machine_ : Machine
        The function that decides between them.
    C_ : float
        The weight of the labels that was given or chosen.
    strength_ : float
        The weight of the graph that was given or chosen.
    bandwidth_ : float
        The bandwidth that was given or chosen.
    num_neighbours_ : int
        The number of neighbours that was given or chosen.
    objective_ : ndarray
        The least risk, one entry per output.
    gap_ : ndarray
        A bound on the distance of `objective_` from the least risk, one entry per output.
    n_iter_ : ndarray
        The number of iterations, one entry per output.
    offset_ : ndarray
        What is added to decisions, one entry per output, with offset="auto" and strength="auto" if there are
        points without a label.
    left_out_loss_ : float
        With strength="auto": minus the mean log probability of a label given all others, by the choice.
    log_evidence_ : float
        With strength="evidence": the evidence of the choice, in nats.
    evidence_kind_ : str
        "exact" for the squared loss, "expectation propagation" for the logistic one.
    cv_error_ : float
        With strength="cross_validation": the error of the choice on held-out labels.
    n_features_in_ : int
        Number of features of a row.

    See Also
    --------
    InvariantSVC : Slopes, moves of images, differences or functionals of your own.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from orbitwise import LaplacianSVC
    >>> X, y = make_moons(200, noise=0.05, random_state=0)
    >>> first = [list(y).index(0), list(y).index(1)]
    >>> model = LaplacianSVC(strength=100.0, bandwidth=0.1).fit(X[first], y[first], unlabeled=X)
    >>> model.score(X, y) > 0.9
    True
    """

    image_shape = None
    num_neighbours_: int
    _bandwidths = ("median", "auto")
    _usual_rate = 10.0
    _usual_strength = 1.0
    _usual_strengths = (0.0, 0.01, 0.1, 1.0, 10.0, 100.0)

    stored = Stored(fitted={"num_neighbours_": Field((int,), least=1)})

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        num_neighbours: int = 6,
        weighting: str = "heat",
        normalized: bool = True,
        C: float | Literal["auto"] = "auto",
        strength: float | str = "auto",
        loss: str | Loss = "squared_hinge",
        bandwidth: float | str = "auto",
        basis: str = "none",
        offset: str = "auto",
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
        self.C: float | str = C
        self.strength = strength
        self.loss = loss
        self.bandwidth = bandwidth
        self.basis = basis
        self.offset = offset
        self.class_weight = class_weight
        self.unlabeled_label = unlabeled_label
        self.Cs = Cs
        self.strengths = strengths
        self.neighbours = neighbours
        self.num_folds = num_folds
        self.random_state = random_state

    def _check_settings(self) -> None:
        super()._check_settings()
        for count in self.neighbours:
            if not isinstance(count, Integral) or count < 1:
                raise ValueError(f"Numbers of neighbours must be whole and at least 1, not {count!r}.")

    def _rows(self, points: Float[Tensor, "t d"], bandwidth: float) -> InvarianceRows:
        return self._graph_rows(points, self.num_neighbours)

    def _graph_rows(self, points: Float[Tensor, "t d"], num_neighbours: int) -> InvarianceRows:
        return laplacian_rows(points, int(num_neighbours), self.weighting, self.normalized)

    def _bandwidth_at(self, points: Float[Tensor, "t d"]) -> float:
        if self.bandwidth != "auto":
            return super()._bandwidth_at(points)
        return min(median_distance(points), neighbour_distance(points, int(self.num_neighbours)))

    def _tasks_to_compare(self, task: MachineTask) -> list[MachineTask]:
        if self.strength == "auto":
            wide = min(median_distance(task.points), 2 * task.bandwidth)
            if self.kernel is not None or self.bandwidth != "auto" or wide == task.bandwidth:
                return [task]
            return [task, replace(task, process=self._process(wide), bandwidth=wide)]
        return [replace(task, rows=self._graph_rows(task.points, count)) for count in self.neighbours]

    def _choose(self, task: MachineTask, seed: int) -> MachineTask:
        chosen = super()._choose(task, seed)
        assert chosen.rows is not None
        assert chosen.rows.graph is not None
        self.num_neighbours_ = chosen.rows.graph.num_neighbours
        return chosen

    def _describe_cost(self, task: MachineTask) -> tuple[str, int, list[str]]:
        _, count, _ = super()._describe_cost(task)
        if self.strength != "cross_validation":
            count = 2 if self.strength == "auto" else count
            return "the graph of", count, ["pass fewer unlabelled rows"]
        cheaper = ["pass fewer unlabelled rows", "try fewer numbers of neighbours"]
        return "the graph of", len(self.neighbours), cheaper
