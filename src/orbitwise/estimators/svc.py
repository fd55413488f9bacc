"""InvariantSVC: kernel classification by a function that hardly changes along given moves (RKHS: InvSVM)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

import numpy as np
from gpytorch.kernels import Kernel
from numpy.typing import NDArray

from orbitwise.estimators.machines.machine import MachineClassifier
from orbitwise.estimators.machines.task import Functions
from orbitwise.estimators.validation import Channels
from orbitwise.losses import Logistic, Loss, Multinomial


@final
class InvariantSVC(MachineClassifier):
    """Classification from few labels by a function that hardly changes along given moves.

    It is the f of least ½|f|² + C Σ ℓ₁(y f(x)) + strength Σ ℓ₂(L f): small in the kernel's norm, right about
    the labels, and L f close to zero at all points, labelled or not, where L f is a slope, a difference or an
    average that should vanish (Zhang, Lee and Teh 2013).

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel, default=None
        None takes a Gaussian kernel of the `bandwidth`. Invariances with derivatives need a differentiable
        kernel.
    invariance : None, str, FiniteOrbit, Functional or list, default="gradient"
        What should be small at all points (the page "Names of invariances" has all names):

        - "gradient": all partial derivatives times the bandwidth, so that the unit of X does not matter;
        - "tangent", "moves", "affine", "rotation", "translation", …: derivatives along moves of images; those
          of "affine" and its parts are multiplied by an ordinary size of the move;
        - "flip", "permutation", …, or a `FiniteOrbit`: differences between f of a moved input and f of it;
        - "differences": the same for images moved as in the paper;
        - "local_average": the average of f around a point minus its value there;
        - "graph", "deletion": differences between neighbours, and by deleted features;
        - a functional, or a list of (functional, inputs) or (functional, inputs, weights), taken as they are,
          in the unit of X.
    C : float or "auto", default="auto"
        The weight λ of the labels. The loss of a row is multiplied by C and by its sample weight. Lower it
        where labels may be wrong. "auto" is chosen together with the strength; if the strength is a number,
        C is 100.
    strength : float, "auto", "evidence" or "cross_validation", default="auto"
        The weight ν of the invariance, by which the loss of each of its rows is multiplied; 0 is no
        invariance. "auto" takes 0.001 unless another strength, or another C, predicts each label from all
        others with a clearly greater probability; it needs no random numbers. If the invariance cannot be
        folded into the kernel ("absolute" and other losses of it), "auto" is 0.001. "evidence" chooses ν, C
        and the bandwidth by the evidence of the labels, the probability that the model gave them before it
        saw them: by expectation propagation for the logistic loss, exactly for the squared one. It leaves the
        usual C, strength and bandwidth by √10, 10 and 2 for each nat that this gains, because few labels
        hardly tell machines apart.
        "cross_validation" chooses ν and C by held-out labels, whose points stay among the unlabelled ones.
        All skip settings that predict one class for all points without a label.
    loss : str or Loss, default="logistic"
        The loss of labels: "logistic", "hinge", "squared_hinge", "squared", or a loss with its own width.
    invariance_loss : str or Loss, default="squared"
        The loss of what should vanish: "squared" (quickest), "absolute" (keeps a few jumps),
        "epsilon_insensitive", or a loss.
    bandwidth : float or "median", default="median"
        The width of the Gaussian kernel; "median" is the median distance of all points. With another kernel
        it is only the unit of length of the invariance.
    basis : {"none", "bias", "linear"}, default="none"
        Functions that are not penalised. With few and unequal labels "none" does better, because a bias may
        follow the larger class while the penalties keep the rest of f flat.
    offset : {"auto", "none"}, default="auto"
        A constant that is added to decisions where strength="auto". The labels tell how common a class can be
        among the points without a label, and a function learned from few labels may be far from that. "auto"
        is zero or the least constant that brings the share of each class to within one standard deviation of
        what the labels tell. "none" is zero: take it if labels were not drawn at random, for example if each
        class was given as many. With a `class_weight` it is zero, too.
    functions : {"auto", "all", "points"}, default="auto"
        The functions that f is chosen from: all, or those that are combinations of the kernel at labelled and
        unlabelled points. With t points the latter takes t³ operations, however many columns there are.
        "auto" takes them if the invariance has more than 2,000 rows (one for each slope, for example).
    multi_class : {"ovr", "multinomial"}, default="ovr"
        One against the rest, or one loss of all classes (with loss="logistic").
    class_weight : None, "balanced" or dict, default=None
        "balanced" gives all classes the same total weight; a dict holds a factor per class.
    unlabeled_label : object, default=None
        The value of y that means "no label". None means that every value is a class.
    image_shape : tuple of int, default=None
        (height, width), or three sizes in the order of `channels`, of an image in a row of X.
    channels : {"auto", "first", "last"}, default="auto"
        Where images [n, …], and three sizes of `image_shape`, have their channels. "auto" takes the axis of
        1, 3 or 4 at either end and refuses what could be both. Orbits, functionals and kernels always see
        rows with the channels first.
    solver : str, default="auto"
        "newton", "lbfgs", "newton_cg", "random", "steepest" or "stochastic". "auto" suits all sizes that fit
        in memory.
    Cs : sequence of float, default=None
        The values of C to choose from where `strength` names a method; None takes a wide grid.
    strengths : sequence of float, default=None
        The strengths to choose from where `strength` names a method; None takes a wide grid.
    num_folds : int, default=5
        The number of folds of the cross-validation, at most the number of labels of the smallest class.
    random_state : int, default=None
        The seed of solvers that draw rows at random, and of the folds, which also scale probabilities. A
        strength that "auto" chose depends on no seed, and neither do its probabilities.

    Attributes
    ----------
    classes_ : ndarray
        The classes.
    machine_ : Machine
        The function that decides between them.
    C_ : float
        The weight of the labels that was given or chosen.
    strength_ : float
        The weight of the invariance that was given or chosen.
    bandwidth_ : float
        The bandwidth that was given or chosen.
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
    channels_ : str or None
        "first" or "last", where images had their channels; None for other inputs.
    n_features_in_ : int
        Number of features of a row.

    See Also
    --------
    LaplacianSVC : Smooth over the graph of neighbours; often better where classes form clusters.
    VirtualSVC : A support vector machine trained on moved copies.

    Examples
    --------
    Two labels for two half-moons; all other points are without one:

    >>> from sklearn.datasets import make_moons
    >>> from orbitwise import InvariantSVC
    >>> X, y = make_moons(200, noise=0.05, random_state=0)
    >>> first = [list(y).index(0), list(y).index(1)]
    >>> model = InvariantSVC(strength=1.0, bandwidth=0.3).fit(X[first], y[first], unlabeled=X)
    >>> model.score(X, y) > 0.9
    True
    """

    _usual_rate = 100.0
    _usual_strength = 0.001
    _usual_strengths = (0.0, *(10.0**power for power in range(-5, 1)))

    def __init__(
        self,
        kernel: Kernel | None = None,
        invariance: object = "gradient",
        *,
        C: float | Literal["auto"] = "auto",
        strength: float | str = "auto",
        loss: str | Loss = "logistic",
        invariance_loss: str | Loss = "squared",
        bandwidth: float | str = "median",
        basis: str = "none",
        offset: str = "auto",
        functions: Functions = "auto",
        multi_class: str = "ovr",
        class_weight: str | Mapping[Any, float] | None = None,
        unlabeled_label: object = None,
        image_shape: Sequence[int] | None = None,
        channels: Channels = "auto",
        solver: str = "auto",
        Cs: Sequence[float] | NDArray[Any] | None = None,
        strengths: Sequence[float] | NDArray[Any] | None = None,
        num_folds: int = 5,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.invariance = invariance
        self.C: float | str = C
        self.strength = strength
        self.loss = loss
        self.invariance_loss = invariance_loss
        self.bandwidth = bandwidth
        self.basis = basis
        self.offset = offset
        self.functions: Functions = functions
        self.multi_class = multi_class
        self.class_weight = class_weight
        self.unlabeled_label = unlabeled_label
        self.image_shape = image_shape
        self.channels: Channels = channels
        self.solver = solver
        self.Cs = Cs
        self.strengths = strengths
        self.num_folds = num_folds
        self.random_state = random_state

    def _label_loss(self) -> Loss:
        loss, count = super()._label_loss(), len(self.classes_)
        if self.multi_class not in ("ovr", "multinomial"):
            raise ValueError(f"multi_class must be 'ovr' or 'multinomial', not {self.multi_class!r}.")
        if self.multi_class == "ovr" or count == 2:
            return loss
        if not isinstance(loss, Logistic):
            raise ValueError("multi_class='multinomial' goes with loss='logistic'.")
        if isinstance(self.strength, str) and self.strength != "auto":
            raise ValueError(f"strength={self.strength!r} goes with multi_class='ovr'.")
        return Multinomial(count)
