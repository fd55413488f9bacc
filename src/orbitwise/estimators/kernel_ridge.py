"""InvariantKernelRidge: kernel ridge regression that hardly changes where it should not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from orbitwise.declarations import FLAG, Stored, require
from orbitwise.estimators.convergence import learning
from orbitwise.estimators.machines.machine import RiskMachine, TrainingRows
from orbitwise.estimators.validation import Channels, answering, check_inputs, check_weights
from orbitwise.functionals.functional import Evaluation, Functional
from orbitwise.losses import Loss, Squared, loss_of

CONSTANT = 1e-12
"""A deviation below this fraction of the largest target is rounding."""
NORMAL = 1.4826
"""The standard deviation of a normal distribution, divided by the median distance from its median."""


@final
class InvariantKernelRidge(RegressorMixin, RiskMachine):
    """Regression by a function that hardly changes along given moves, at any points.

    It is the f of least ½|f|² + C Σ (f(x) - y)² + strength Σ ℓ(L f), where L f should vanish. With squared
    losses f is the posterior mean of a Gaussian process that observed y with noise variance 1/(2C), and L f =
    0 with noise variance 1/(2 strength). Targets are divided by a robust deviation (1.4826 times the median
    distance from the median), which matters only to other losses and their widths.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel, default=None
        None takes a Gaussian kernel of the `bandwidth`. Invariances with derivatives need a differentiable
        kernel.
    invariance : None, str, FiniteOrbit, Functional or list, default="gradient"
        What should be small at all points, as in `InvariantSVC`.
    C : float, default=10.0
        The weight λ of the targets. The loss of a row is multiplied by C and by its sample weight. Lower it
        where targets are noisy.
    strength : float or "evidence", default=0.001
        The weight ν of the invariance; 0 is no invariance. "evidence" chooses ν, C and the bandwidth by the
        evidence of y given L f = 0, its probability density before it was seen, the basis integrated out.
    loss : str or Loss, default="squared"
        The loss of targets: "squared", "absolute", "epsilon_insensitive", or a loss.
    invariance_loss : str or Loss, default="squared"
        The loss of what should vanish: "squared", "absolute" (keeps a few jumps), "epsilon_insensitive", or a
        loss.
    bandwidth : float or "median", default="median"
        The width of the Gaussian kernel; "median" is the median distance of all points. With another kernel
        it is only the unit of length of the invariance.
    basis : {"bias", "linear", "none"}, default="bias"
        Functions that are not penalised.
    image_shape : tuple of int, default=None
        (height, width), or three sizes in the order of `channels`, of an image in a row of X.
    channels : {"auto", "first", "last"}, default="auto"
        Where images have their channels, as in `InvariantSVC`.
    solver : str, default="auto"
        "newton", "lbfgs", "newton_cg", "random", "steepest" or "stochastic".
    Cs : sequence of float, default=None
        The values of C that the evidence chooses from; None takes a wide grid.
    strengths : sequence of float, default=None
        The strengths that the evidence chooses from; None takes a wide grid.
    random_state : int, default=None
        The seed of solvers that draw rows at random.

    Attributes
    ----------
    machine_ : Machine
        The learned function.
    C_ : float
        The weight of the targets that was given or chosen.
    strength_ : float
        The weight of the invariance that was given or chosen.
    bandwidth_ : float
        The bandwidth that was given or chosen.
    objective_ : ndarray
        The least risk, one entry per output, for targets divided by their deviations.
    gap_ : ndarray
        A bound on the distance of `objective_` from the least risk, one entry per output.
    n_iter_ : ndarray
        The number of iterations, one entry per output.
    log_evidence_ : float
        With strength="evidence": the evidence at the best scale of f, in nats.
    evidence_kind_ : str
        "exact".
    channels_ : str or None
        "first" or "last", where images had their channels; None for other inputs.
    n_features_in_ : int
        Number of features of a row.

    See Also
    --------
    InvariantGPRegressor : Averages over an orbit, and says how sure it is.

    Examples
    --------
    >>> import numpy as np
    >>> from orbitwise import InvariantKernelRidge
    >>> X = np.linspace(-1, 1, 20)[:, None]
    >>> model = InvariantKernelRidge(invariance="negation", strength=10.0).fit(X[10:], X[10:, 0] ** 2)
    >>> bool(np.abs(model.predict(X) - X[:, 0] ** 2).max() < 0.1)
    True
    """

    _choosers = ("evidence",)
    _evidence_losses = (Squared,)

    stored = Stored(fitted={"_is_vector": FLAG})

    def check_parts(self) -> None:
        super().check_parts()
        require(not self._is_vector or self.machine_.coefficients.shape[1] == 1, "other outputs")

    def __init__(
        self,
        kernel: Kernel | None = None,
        invariance: object = "gradient",
        *,
        C: float = 10.0,
        strength: float | str = 0.001,
        loss: str | Loss = "squared",
        invariance_loss: str | Loss = "squared",
        bandwidth: float | str = "median",
        basis: str = "bias",
        image_shape: Sequence[int] | None = None,
        channels: Channels = "auto",
        solver: str = "auto",
        Cs: Sequence[float] | None = None,
        strengths: Sequence[float] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.invariance = invariance
        self.C = C
        self.strength = strength
        self.loss = loss
        self.invariance_loss = invariance_loss
        self.bandwidth = bandwidth
        self.basis = basis
        self.image_shape = image_shape
        self.channels: Channels = channels
        self.solver = solver
        self.Cs = Cs
        self.strengths = strengths
        self.random_state = random_state

    @learning("objective_")
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        unlabeled: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> InvariantKernelRidge:
        """Learn from targets, and use rows without targets for the invariance."""
        self._check_settings()
        data = self._weighted_rows(X, y, unlabeled, sample_weight)
        loss = loss_of(self.loss)
        if loss.takes_labels:
            raise ValueError(
                f"loss must be a loss of numbers, such as 'squared' or 'absolute', not {self.loss!r}."
            )
        scale = robust_deviations(data.targets, data.weights)
        seed = self._seed()
        task = self._task(data._replace(targets=data.targets / scale[:, None]), loss)
        task = self._choose(task, seed)
        if self.strength == "evidence":
            # the density of targets in their own unit, where the basis leaves n - b contrasts of each output
            self.log_evidence_ -= (len(task.x) - task.basis.shape[1]) * float(scale.log().sum())
        solutions = self._minimise(task, seed)
        self.machine_ = self.machine_.scaled(scale)
        at_zero = loss.value(torch.zeros_like(task.targets), task.targets)
        self._certify(solutions, self.C_ * at_zero @ task.weights)
        return self

    @answering
    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """f at every row."""
        return self._values(Evaluation(), check_inputs(self, X))

    @answering
    def predict_functional(self, functional: Functional, X: ArrayLike) -> NDArray[np.float64]:
        """Another functional of f, for example its slopes `Gradient()`."""
        check_is_fitted(self)
        return self._values(functional, check_inputs(self, X, plain=functional.is_identity))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = False
        tags.target_tags.multi_output = True
        return tags

    def _values(self, functional: Functional, x: torch.Tensor) -> NDArray[np.float64]:
        check_is_fitted(self)
        values = self.machine_.values(functional, x)
        return (values[:, 0] if self._is_vector else values).numpy()

    def _weighted_rows(
        self, X: ArrayLike, y: ArrayLike, unlabeled: ArrayLike | None, sample_weight: ArrayLike | None
    ) -> TrainingRows:
        """Validated training data, without rows of weight zero."""
        x, targets = self._training_data(X, y, multi_output=True, y_numeric=True)
        targets = np.asarray(targets, dtype=np.float64)
        self._is_vector = targets.ndim == 1
        weight = check_weights(sample_weight, x)
        kept = weight > 0
        if not kept.any():
            raise ValueError("sample_weight is zero for all rows: nothing is left to learn from.")
        return TrainingRows(
            torch.from_numpy(x[kept]),
            torch.from_numpy(targets.reshape(len(x), -1)[kept].T.copy()),
            torch.from_numpy(weight[kept]),
            torch.from_numpy(self._unlabeled_rows(unlabeled)),
        )


def robust_deviations(targets: Float[Tensor, "c n"], weights: Float[Tensor, " n"]) -> Float[Tensor, " c"]:
    """A robust deviation: the median distance of targets from the median of their output, times 1.4826.

    If most targets are equal it is the standard deviation, for constant targets their size, and 1 if all are
    zero.
    """
    size = targets.abs().amax(-1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    scaled, share = targets / size, weights / weights.sum()
    near = NORMAL * _median((scaled - _median(scaled, share)).abs(), share)[:, 0]
    spread = ((scaled - (scaled @ share)[:, None]).square() @ share).sqrt()
    spread = torch.where(near > CONSTANT, near, spread)
    return size[:, 0] * torch.where(spread > CONSTANT, spread, 1.0)


def _median(values: Float[Tensor, "c n"], share: Float[Tensor, " n"]) -> Float[Tensor, "c 1"]:
    """The smallest value that at least half of the weight does not exceed."""
    ordered, order = values.sort(-1)
    place = (share[order].cumsum(-1) < 0.5 - 1e-9).sum(-1, keepdim=True)
    return ordered.gather(-1, place.clamp_max(values.shape[-1] - 1))
