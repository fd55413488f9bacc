"""VirtualSVC: scikit-learn's SVC on virtual samples, the alternative to invariance functionals (RKHS 6.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.svm import SVC
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from orbitwise.declarations import MOST_COUNTED, NUMBER, REPORTED_ARRAY, SMALLEST, Field, Stored, require
from orbitwise.estimators.convergence import learning
from orbitwise.estimators.invariances import Inputs, is_none, is_of_images, orbit_of
from orbitwise.estimators.machines.machine import ALONE, KernelMachine
from orbitwise.estimators.validation import Channels, answering, check_inputs, input_shape
from orbitwise.functionals.averages import drawn_form
from orbitwise.functionals.tangents import PAPER_MOVES, Move, moved_images
from orbitwise.inference.calibration import warn_of_one_class
from orbitwise.orbits.orbit import Orbit

VIRTUAL = ("samples", "support_vectors")


@final
class VirtualSVC(ClassifierMixin, KernelMachine):
    """A support vector machine trained on moved copies of its samples, or of its support vectors alone.

    This is data augmentation, with which the other estimators can be compared: simple, and fast if there are
    few copies.

    Parameters
    ----------
    invariance : None, str, Orbit or callable, default=None
        How copies are made: "moves" shifts, rotates, scales and shears images; an orbit, or the name of one
        ("affine", "signal:shift", …), is sampled `num_copies` times per row; a function turns rows [n, d]
        into copies [n, k, d]. None makes no copies.
    virtual : {"samples", "support_vectors"}, default="samples"
        Whether all samples are copied, or only the support vectors of a first machine without copies, which
        is quicker. In the second case a second machine is trained on the support vectors and their copies
        (Schölkopf, Burges and Vapnik 1996).
    C : float, default=1.0
        The penalty of `sklearn.svm.SVC`; a copy counts as a sample.
    bandwidth : float or "median", default="median"
        The width b of the Gaussian kernel exp(-|x-x′|²/2b²); "median" is the median distance of the samples.
    moves : sequence of (name, amount), default=PAPER_MOVES
        The moves of invariance="moves".
    num_copies : int, default=8
        The number of copies per row that are drawn from an orbit.
    class_weight : None, dict or "balanced", default=None
        As in `sklearn.svm.SVC`.
    image_shape : tuple of int, default=None
        (height, width), or three sizes in the order of `channels`, of an image in a row of X.
    channels : {"auto", "first", "last"}, default="auto"
        Where images [n, …], and three sizes of `image_shape`, have their channels. "auto" takes the axis of
        1, 3 or 4 at either end and refuses what could be both. Orbits, functionals and kernels always see
        rows with the channels first.
    random_state : int, default=None
        The seed of copies that are drawn.

    Attributes
    ----------
    classes_ : ndarray
        The classes.
    svc_ : sklearn.svm.SVC
        The fitted machine.
    bandwidth_ : float
        The width of its kernel.
    num_samples_ : int
        The number of rows and copies that it learned from.
    channels_ : str or None
        "first" or "last", where images had their channels; None for other inputs.
    n_features_in_ : int
        Number of features of a row.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from orbitwise import VirtualSVC
    >>> images, labels = load_digits(return_X_y=True)
    >>> images = images.reshape(-1, 8, 8)
    >>> model = VirtualSVC("translation", num_copies=3, random_state=0).fit(images[:100], labels[:100])
    >>> model.num_samples_
    400
    """

    stored = Stored(
        fitted={
            "bandwidth_": replace(NUMBER, least=SMALLEST),
            "classes_": REPORTED_ARRAY,
            "num_samples_": Field((int,), least=1, most=MOST_COUNTED),
            "svc_": Field((SVC,)),
        }
    )

    def check_parts(self) -> None:
        super().check_parts()
        width = self.svc_.support_vectors_.shape[1]
        require(width == self.n_features_in_, "support vectors of other inputs")
        is_same = np.array_equal(self.svc_.classes_, self.classes_)
        require(is_same, "support vectors of other classes")

    def __init__(
        self,
        invariance: str | Orbit | Callable[[NDArray[np.float64]], ArrayLike] | None = None,
        *,
        virtual: str = "samples",
        C: float = 1.0,
        bandwidth: float | str = "median",
        moves: Sequence[Move] = PAPER_MOVES,
        num_copies: int = 8,
        class_weight: str | dict[Any, float] | None = None,
        image_shape: Sequence[int] | None = None,
        channels: Channels = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.invariance = invariance
        self.virtual = virtual
        self.C = C
        self.bandwidth = bandwidth
        self.moves = moves
        self.num_copies = num_copies
        self.class_weight = class_weight
        self.image_shape = image_shape
        self.channels: Channels = channels
        self.random_state = random_state

    @learning("bandwidth_")
    def fit(self, X: ArrayLike, y: ArrayLike) -> VirtualSVC:
        """Train on samples and their copies.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            Rows, or images with dimensions of their own.
        y : array-like of shape (n_samples,)
            Labels, of at least two classes.

        Returns
        -------
        VirtualSVC
            The fitted estimator.
        """
        self._check_kernel_settings()
        if self.virtual not in VIRTUAL:
            raise ValueError(f"virtual must be one of {', '.join(VIRTUAL)}, not {self.virtual!r}.")
        x, labels = self._training_data(X, y)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        self.bandwidth_ = self._bandwidth_at(torch.from_numpy(np.unique(x, axis=0)))
        if self.virtual == "support_vectors" and not is_none(self.invariance):
            first = self._machine().fit(x, labels)
            x, labels = x[first.support_], labels[first.support_]
        copies = self._copies(x)
        count = copies.shape[1]
        self.num_samples_ = len(x) * (1 + count)
        self.svc_ = self._machine().fit(
            np.concatenate([x, copies.reshape(-1, x.shape[1])]),
            np.concatenate([labels, np.repeat(labels, count)]),
        )
        predicted, codes = (
            torch.from_numpy(np.searchsorted(self.classes_, each)) for each in (self.svc_.predict(x), labels)
        )
        has_no_label = torch.zeros_like(predicted, dtype=torch.bool)
        warn_of_one_class(type(self).__name__, self.classes_, predicted, has_no_label, codes, ALONE)
        return self

    @answering
    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """f at every row: [n] for two classes, positive for the second; else [n, classes]."""
        check_is_fitted(self)
        return self.svc_.decision_function(check_inputs(self, X).numpy())

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class of every row."""
        check_is_fitted(self)
        return self.svc_.predict(check_inputs(self, X).numpy())

    def _machine(self) -> SVC:
        return SVC(C=self.C, class_weight=self.class_weight).set_params(gamma=0.5 / self.bandwidth_**2)

    def _copies(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The copies of every row, [n, k, d]."""
        invariance = self.invariance
        if is_none(invariance):
            return np.zeros((len(x), 0, x.shape[1]))
        if isinstance(invariance, Orbit | str):
            # warps fill with zeros, which must be the background
            background = float(x.min()) if is_of_images(invariance) else 0.0
            return self._moved(torch.from_numpy(x - background), invariance).numpy() + background
        if not callable(invariance):
            raise TypeError(
                "invariance must be None, a name, an orbit or a function of rows, not "
                f"{type(invariance).__name__} {invariance!r}."
            )
        # a function of the user takes and gives rows as the user does
        copies = np.asarray(invariance(self.form_.outward(x)), dtype=np.float64)
        if copies.ndim != 3 or copies.shape[::2] != x.shape or not np.isfinite(copies).all():
            raise ValueError(
                f"invariance must turn rows {x.shape} into finite copies [n, k, d], not {copies.shape}."
            )
        return self.form_.inward(copies)

    def _moved(self, x: Float[torch.Tensor, "n d"], invariance: Orbit | str) -> Float[torch.Tensor, "n k d"]:
        """Rows moved by the listed moves, or at random by an orbit."""
        if invariance == "moves":
            if self.form_.image_shape is None:
                raise ValueError(
                    "invariance='moves' is one of images: pass image_shape=(height, width), or X with image "
                    "dimensions."
                )
            return moved_images(x, self.form_.image_shape, self.moves)
        if isinstance(invariance, str):
            invariance = orbit_of(invariance, Inputs(x.shape[1], input_shape(self)), "copy")
        generator = torch.Generator().manual_seed(self._seed())
        with torch.no_grad():
            orbit = drawn_form(invariance)
            return orbit.move(x, orbit.noise((len(x), self.num_copies), generator, x))
