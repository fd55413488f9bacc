"""The base classes of kernel machines: labels and weights, the fit, its certificate, predictions.

Their functions have the least ½|f|² + C Σ ℓ₁(f(x), y) + strength Σ ℓ₂(L f), where L f should vanish.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple, TypeGuard, TypeVar

import numpy as np
import torch
from gpytorch.kernels import Kernel, RBFKernel
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from orbitwise.declarations import (
    NUMBER,
    REPORTED,
    REPORTED_ARRAY,
    SMALLEST,
    TEXT,
    Field,
    Stored,
    is_plain_numbers,
    require,
)
from orbitwise.estimators.convergence import learning
from orbitwise.estimators.estimator import FittedForm
from orbitwise.estimators.machines.choosing import (
    STRENGTHS,
    Choice,
    Grid,
    Usual,
    first_with_several_classes,
    rank_by_cross_validation,
    rank_by_evidence,
    rank_by_labels_left_out,
    stratified_folds,
)
from orbitwise.estimators.machines.shares import offsets_of_classes
from orbitwise.estimators.machines.task import (
    Functions,
    InvarianceRows,
    MachineTask,
    distinct_points,
    invariance_rows,
    is_isotropic,
    median_distance,
)
from orbitwise.estimators.validation import (
    answering,
    as_array,
    check_inputs,
    check_settings,
    check_weights,
    input_shape,
    training_rows,
)
from orbitwise.functionals.functional import Evaluation
from orbitwise.inference.calibration import cautious_scale, two_columns, warn_of_one_class
from orbitwise.inference.optimise.cost import check_cost, users_level
from orbitwise.inference.risk.machines import BASES, SOLVERS, Machine, held_out_scores, predicted_classes
from orbitwise.inference.risk.problem import Solution
from orbitwise.losses import Logistic, Loss, Multinomial, Squared, loss_of
from orbitwise.process.process import Process

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Bandwidths to choose from, in units of the median distance."""
SLOPE_STRENGTHS = tuple(strength for strength in STRENGTHS if strength <= 10)
"""Strengths for slopes in units of the bandwidth: larger ones make f flat and take longest to fold."""
ACCEPTED = 1e-4
"""A gap above this fraction of the risk gives a warning."""
ROUNDING = 64 * np.finfo(np.float64).eps
"""A gap below this fraction of the risk of f = 0 is only rounding."""
BALANCE = "class_weight='balanced', or label more rows"
ALONE = f"Raise C, use {BALANCE}"
CHOOSE = f"Raise C, lower strength, use strength='cross_validation' or {BALANCE}"
"""Advice if one class is predicted for all rows, without an invariance and with one."""


class KernelMachine(FittedForm, BaseEstimator, ABC):
    """Base class of kernel machines, with a bandwidth, learned from rows or images."""

    bandwidth: float | str
    random_state: int | np.random.RandomState | None
    bandwidth_: float
    n_features_in_: int
    _bandwidths: tuple[str, ...] = ("median",)
    """Words for a bandwidth."""

    def _seed(self) -> int:
        return self._seed_of(self.random_state)

    @staticmethod
    def _seed_of(random_state: int | np.random.RandomState | None) -> int:
        """A seed that is drawn."""
        return int(check_random_state(random_state).randint(2**31))

    def _check_kernel_settings(self) -> None:
        check_settings(self)
        if self.bandwidth not in self._bandwidths:
            check_positive(self.bandwidth, "bandwidth", f", or {' or '.join(map(repr, self._bandwidths))}")

    def _bandwidth_at(self, points: Float[torch.Tensor, "t d"]) -> float:
        return median_distance(points) if isinstance(self.bandwidth, str) else float(self.bandwidth)

    def _training_data(
        self, X: ArrayLike, y: ArrayLike, **settings: bool
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Validated rows, with their channels first, and targets; it sets `n_features_in_` and `form_`."""
        return training_rows(self, X, y, **settings)


class TrainingRows(NamedTuple):
    """Points with targets and weights, and the points without a target."""

    x: Float[torch.Tensor, "n d"]
    targets: Float[torch.Tensor, "c n"]
    weights: Float[torch.Tensor, " n"]
    unlabeled: Float[torch.Tensor, "u d"]


class RiskMachine(KernelMachine, ABC):
    """A kernel machine of least regularised risk.

    Settings with a value here are constants for estimators that do not have them as arguments.
    """

    kernel: Kernel | None
    C: float | str
    strength: float | str
    loss: str | Loss
    basis: str
    Cs: Sequence[float] | NDArray[Any] | None
    strengths: Sequence[float] | NDArray[Any] | None
    invariance: object = None
    invariance_loss: str | Loss = "squared"
    solver: str = "auto"
    num_folds: int = 5
    functions: Functions = "all"

    machine_: Machine
    C_: float
    strength_: float
    objective_: NDArray[np.float64]
    gap_: NDArray[np.float64]
    n_iter_: NDArray[np.int64]
    log_evidence_: float
    evidence_kind_: str
    cv_error_: float
    left_out_loss_: float

    _choosers: tuple[str, ...] = ("evidence", "cross_validation")
    """The methods that can choose the strength."""
    _evidence_losses: tuple[type[Loss], ...] = (Logistic, Squared)
    """The losses of targets for which there is an evidence."""

    stored = Stored(
        fitted={
            "C_": NUMBER,
            "bandwidth_": replace(NUMBER, least=SMALLEST),
            "gap_": REPORTED_ARRAY,
            "machine_": Field((Machine,)),
            "n_iter_": REPORTED_ARRAY,
            "objective_": REPORTED_ARRAY,
            "strength_": NUMBER,
        },
        sometimes={
            "cv_error_": REPORTED,
            "evidence_kind_": TEXT,
            "left_out_loss_": REPORTED,
            "log_evidence_": REPORTED,
        },
    )

    def check_parts(self) -> None:
        super().check_parts()
        width = self.n_features_in_
        require(self.machine_.rows[0].points.shape[-1] == width, "a machine of other inputs")
        for name in ("gap_", "n_iter_", "objective_"):
            array = getattr(self, name)
            require(array.dtype.kind in "iuf" and array.ndim <= 1, f"{name} that are no numbers")
        probes = np.random.default_rng(0).normal(size=(2, width))
        values = self.machine_.values(Evaluation(), torch.from_numpy(probes))
        require(values.shape[1] > 0, "no outputs")
        require(is_plain_numbers(values), "a machine whose values are not finite")

    def _check_settings(self) -> None:
        """Raise an error for settings that a kernel machine cannot use."""
        self._check_kernel_settings()
        for name, known in (("basis", BASES), ("solver", SOLVERS)):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}.")
        strength = self.strength
        if strength not in self._choosers and not (_is_number(strength) and strength >= 0):
            raise ValueError(
                "strength must be finite and at least 0 (0 is no invariance), "
                f"{' or '.join(map(repr, self._choosers))}, not {strength!r}."
            )
        for name, least, values in (("Cs", "positive", self.Cs), ("strengths", "at least 0", self.strengths)):
            fine = values is None or (
                len(values) > 0
                and all(_is_number(v) and (v > 0 or (v == 0 and name == "strengths")) for v in values)
            )
            if not fine:
                raise ValueError(f"{name} must be finite numbers, {least}, not {values!r}.")

    def _unlabeled_rows(self, unlabeled: ArrayLike | None) -> NDArray[np.float64]:
        """Validated rows without labels, possibly none."""
        rows = as_array(unlabeled)
        if rows is not None and np.ndim(rows) == 0:
            raise ValueError(
                f"unlabeled must be rows of inputs [n, {self.n_features_in_}] without labels, or None, not "
                f"{rows!r}."
            )
        if rows is None or len(rows) == 0:
            return np.zeros((0, self.n_features_in_))
        return check_inputs(self, rows).numpy()

    def _rows(self, points: Float[torch.Tensor, "t d"], bandwidth: float) -> InvarianceRows | None:
        """The rows of functionals that should vanish, at all points."""
        is_squared = isinstance(loss_of(self.invariance_loss), Squared)
        only_length = is_squared and self.basis != "linear" and is_isotropic(self.kernel)
        return invariance_rows(self.invariance, points, bandwidth, input_shape(self), only_length)

    def _process(self, bandwidth: float) -> Process:
        if self.kernel is not None:
            return Process(None, copy.deepcopy(self.kernel).double())
        kernel = RBFKernel().double()
        kernel.lengthscale = torch.tensor(bandwidth, dtype=torch.float64)
        return Process(None, kernel)

    def _task(self, data: TrainingRows, loss: Loss) -> MachineTask:
        """The learning task, before λ, ν and the bandwidth are chosen."""
        points = distinct_points(data.x, data.unlabeled)
        bandwidth = self._bandwidth_at(points)
        process, rows = self._process(bandwidth), self._rows(points, bandwidth)
        if rows is not None:
            # a kernel without derivatives raises its error here
            process.covariance(rows.blocks[0].rows(slice(0, 1)))
        return MachineTask(
            data.x,
            data.targets,
            data.weights,
            loss,
            points,
            process,
            rows,
            bandwidth,
            self.basis,
            loss_of(self.invariance_loss),
            self.functions,
        )

    @property
    def _is_bandwidth_free(self) -> bool:
        return self.kernel is None and isinstance(self.bandwidth, str)

    def _at_bandwidths(self, task: MachineTask) -> list[MachineTask]:
        """The task at several bandwidths if the evidence chooses one, else the task alone."""
        widths = [factor * task.bandwidth for factor in BANDWIDTHS if self._is_bandwidth_free]
        return [
            replace(task, process=self._process(width), rows=self._rows(task.points, width), bandwidth=width)
            for width in widths
        ] or [task]

    def _tasks_to_compare(self, task: MachineTask) -> list[MachineTask]:
        """The tasks from which cross-validation chooses."""
        return [task]

    def _select(self, ranked: Sequence[Choice]) -> Choice:
        """The selected one of the ranked choices."""
        return ranked[0]

    def _choose(self, task: MachineTask, seed: int) -> MachineTask:
        """Set `C_`, `strength_` and `bandwidth_` to the given values, or by evidence or cross-validation."""
        self._check_cost(task)
        for chosen in ("log_evidence_", "evidence_kind_", "cv_error_", "left_out_loss_"):
            vars(self).pop(chosen, None)
        fixed = self._fixed_settings(task)
        if fixed is not None:
            (self.C_, self.strength_), self.bandwidth_ = fixed, task.bandwidth
            return task
        self._check_choice(task)
        usual = SLOPE_STRENGTHS if self.invariance == "gradient" else STRENGTHS
        strengths = usual if self.strengths is None else [float(each) for each in self.strengths]
        rates = None if self.Cs is None else [float(each) for each in self.Cs]
        if self.strength == "auto":
            choice = self._select(rank_by_labels_left_out(self._tasks_to_compare(task), self._grid()))
            self.left_out_loss_ = choice.score
        elif self.strength == "evidence":
            tasks, usual = self._at_bandwidths(task), self._usual_settings(task)
            choice = self._select(rank_by_evidence(tasks, strengths, rates, usual))
            self.log_evidence_ = choice.score
            self.evidence_kind_ = "expectation propagation" if isinstance(task.loss, Logistic) else "exact"
        else:
            smallest = int(torch.bincount(task.codes).min())
            if smallest < 2:
                raise ValueError("strength='cross_validation' needs at least two labels of every class.")
            folds = stratified_folds(task.codes, min(self.num_folds, smallest), seed)
            ranked = rank_by_cross_validation(self._tasks_to_compare(task), folds, strengths, rates)
            choice = self._select(ranked)
            self.cv_error_ = choice.score
        self.C_, self.strength_, self.bandwidth_ = choice.rate, choice.strength, choice.task.bandwidth
        return choice.task

    def _fixed_settings(self, task: MachineTask) -> tuple[float, float] | None:
        """C and the strength if they are given; None if they are to be chosen."""
        return None if isinstance(self.strength, str) else (float(self.C), float(self.strength))

    def _grid(self) -> Grid:
        """What strength="auto" chooses from."""
        raise NotImplementedError

    def _usual_settings(self, task: MachineTask) -> Usual | None:
        """What strength="evidence" leaves only if targets say so; None lets the evidence decide alone."""
        return None

    def _check_choice(self, task: MachineTask) -> None:
        """Raise a ValueError if the strength cannot be chosen because invariances cannot be folded."""
        asked = f"strength={self.strength!r} goes with"
        if not isinstance(task.invariance_loss, Squared):
            raise ValueError(f"{asked} invariance_loss='squared'.")
        if task.penalises_basis:
            raise ValueError(
                f"{asked} an invariance that is zero for all functions of the basis, but it is not for "
                f"basis={self.basis!r}: use basis='bias' or 'none'."
            )
        if self.strength == "evidence" and not isinstance(task.loss, self._evidence_losses):
            names = " or ".join(repr(kind.__name__.lower()) for kind in self._evidence_losses)
            raise ValueError(f"{asked} loss={names}.")

    def _check_cost(self, task: MachineTask) -> None:
        """Warn if a fit takes long, and raise a ValueError if it needs too much memory."""
        if self.strength == 0:
            return
        what, count, cheaper = self._describe_cost(task)
        if len(cheaper) > 1:
            cheaper[-1] = f"or {cheaper[-1]}"
        doing = f"{type(self).__name__}.fit with {what} {len(task.points):,} points"
        check_cost(task.cost.times(count), doing, ", ".join(cheaper))

    def _describe_cost(self, task: MachineTask) -> tuple[str, int, list[str]]:
        """What makes a fit expensive, how often it is done, and cheaper alternatives."""
        num_rows = 0 if task.rows is None else task.rows.num_rows
        cheaper = ["pass fewer unlabelled rows", "reduce the features (PCA)"]
        if self.invariance != "graph":
            cheaper.append("use invariance='graph'")
        count = len(BANDWIDTHS) if self.strength == "evidence" and self._is_bandwidth_free else 1
        return f"{num_rows:,} rows of its invariance at", count, cheaper

    def _minimise(self, task: MachineTask, seed: int) -> list[Solution]:
        """Set `machine_`, the function of least risk, for every output."""
        generator = torch.Generator().manual_seed(seed)
        self.machine_, solutions = task.fit(self.C_, self.strength_, self.solver, generator)
        return solutions

    def _certify(self, solutions: Sequence[Solution], sizes: Float[torch.Tensor, " c"] | None = None) -> None:
        """Store the risk, gap and iterations of every output, and warn if a gap is not small.

        `sizes` are the risks of f = 0; gaps at the level of their rounding are ignored.
        """
        self.objective_ = np.array([found.objective.item() for found in solutions])
        self.gap_ = np.array([found.gap.item() for found in solutions])
        self.n_iter_ = np.array([found.iterations for found in solutions])
        rounding = 0.0 if sizes is None else ROUNDING * sizes.numpy()
        if (self.gap_ > np.maximum(ACCEPTED * self.objective_, rounding)).any():
            warnings.warn(
                f"The solver stopped with a gap of up to {self.gap_.max():.2g} in a risk of "
                f"{self.objective_.max():.2g}: scale the inputs, lower C, or widen the losses.",
                ConvergenceWarning,
                stacklevel=users_level(sys._getframe()),
            )


class Labelled(NamedTuple):
    """Labelled points, their class numbers and weights, and the points without a label.

    Equal rows are merged, their weights are added, and rows are sorted. So a weight is a number of
    repetitions, and the original order of rows does not matter.
    """

    x: Float[torch.Tensor, "n d"]
    codes: Int[torch.Tensor, " n"]
    weights: Float[torch.Tensor, " n"]
    unlabeled: Float[torch.Tensor, "u d"]


Fitted = TypeVar("Fitted", bound="MachineClassifier")


class MachineClassifier(ClassifierMixin, RiskMachine, ABC):
    """Base class of classifiers: decisions, and probabilities that are scaled on held-out labels."""

    class_weight: str | Mapping[Any, float] | None
    unlabeled_label: object
    offset: str

    _choosers = ("auto", "evidence", "cross_validation")
    _usual_rate: float
    _usual_strength: float
    """What is taken if nothing is chosen."""
    _usual_strengths: tuple[float, ...]
    """What strength="auto" chooses from."""

    classes_: NDArray[Any]
    scale_: float

    offset_: NDArray[np.float64]

    stored = Stored(
        fitted={"classes_": REPORTED_ARRAY, "scale_": NUMBER},
        sometimes={"offset_": Field((np.ndarray,))},
    )

    def check_parts(self) -> None:
        super().check_parts()
        count, outputs = len(self.classes_), self.machine_.coefficients.shape[1]
        require(outputs == (1 if count == 2 else count), "a machine of other classes")
        require(self._offset.shape == (outputs,), "an offset of other classes")

    @learning("objective_", "scale_")
    def fit(
        self: Fitted,
        X: ArrayLike,
        y: ArrayLike,
        unlabeled: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Fitted:
        """Learn from labelled rows, and use rows without labels for the invariance.

        A weight is a number of copies of a row, and 0 removes it. For the invariance, equal points are one
        point.

        Ctrl-C raises KeyboardInterrupt and leaves no model, because a machine has no certificate before its
        solver has ended.
        """
        self._check_settings()
        if self.offset not in ("auto", "none"):
            raise ValueError(f"offset must be 'auto' or 'none', not {self.offset!r}.")
        data = self._labelled(X, y, unlabeled, sample_weight)
        loss, count = self._label_loss(), len(self.classes_)
        is_joint = isinstance(loss, Multinomial)
        targets = class_codes(data.codes, count) if is_joint else signed_targets(data.codes, count)
        weights = class_weights(self.class_weight, self.classes_, data.codes, data.weights)
        seed = self._seed()
        task = self._task(TrainingRows(data.x, targets, weights, data.unlabeled), loss)
        task = self._choose(task, seed)
        self._certify(self._minimise(task, seed))
        with torch.no_grad():
            scores = self.machine_.values(Evaluation(), task.points)
        self._set_offset(task, scores, data)
        predicted = predicted_classes((scores + self._offset).mT)
        advice = CHOOSE
        if self.unlabeled_label is None and any(each == -1 for each in self.classes_):
            advice += "; if -1 marks rows without a label, pass unlabeled_label=-1"
        warn_of_one_class(
            type(self).__name__, self.classes_, predicted, task.has_no_label, task.codes, advice
        )
        self.scale_ = self._probability_scale(task, seed)
        return self

    @answering
    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """f at every row: [n] for two classes, positive for the second; else [n, classes]."""
        check_is_fitted(self)
        scores = self.machine_.values(Evaluation(), check_inputs(self, X)) + self._offset
        return (scores[:, 0] if scores.shape[1] == 1 else scores).numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class of the greatest decision."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]

    @answering
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities of the classes: a softmax of decisions, with a scale from cross-validation."""
        scores = torch.from_numpy(self.decision_function(X))
        columns = two_columns(scores[:, None]) if scores.dim() == 1 else scores
        return torch.softmax(self.scale_ * columns, dim=1).numpy()

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The share of labels that are predicted; rows with the `unlabeled_label` do not count."""
        from sklearn.metrics import accuracy_score  # takes long to import

        predicted, labels = self.predict(X), np.asarray(y)
        if self.unlabeled_label is None or labels.shape != predicted.shape:
            return float(accuracy_score(labels, predicted, sample_weight=sample_weight))
        counted = self._is_labelled(labels)
        if not counted.any():
            raise ValueError("All rows are unlabelled: a score needs rows with labels.")
        weight = None if sample_weight is None else np.asarray(sample_weight)[counted]
        return float(accuracy_score(labels[counted], predicted[counted], sample_weight=weight))

    def _is_labelled(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows have a label."""
        if self.unlabeled_label is None:
            return np.ones(len(labels), dtype=bool)
        return np.array([label != self.unlabeled_label for label in labels], dtype=bool)

    def _labelled(
        self, X: ArrayLike, y: ArrayLike, unlabeled: ArrayLike | None, sample_weight: ArrayLike | None
    ) -> Labelled:
        """Validated training data; sets `classes_`. Rows of weight zero are removed."""
        x, labels = self._training_data(X, y)
        check_classification_targets(labels)
        weight = check_weights(sample_weight, x)
        is_labelled = self._is_labelled(labels)
        if not is_labelled.any():
            raise ValueError("All rows are unlabelled; a classifier needs labels of at least two classes.")
        self.classes_, codes = np.unique(labels[is_labelled], return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                "Classification needs at least two classes, but the labels hold one class only: "
                f"{self.classes_.tolist()[0]!r}."
            )
        is_counted = weight > 0
        counted = is_labelled & is_counted
        if len(np.unique(labels[counted])) < len(self.classes_):
            raise ValueError(
                "All rows of a class have sample_weight 0: give at least one of them a positive weight."
            )
        others = np.concatenate([x[~is_labelled & is_counted], self._unlabeled_rows(unlabeled)])
        rows = np.column_stack([x[counted], codes[counted[is_labelled]]])
        rows, place = np.unique(rows, axis=0, return_inverse=True)
        return Labelled(
            torch.from_numpy(rows[:, :-1].copy()),
            torch.from_numpy(rows[:, -1].astype(np.int64)),
            torch.from_numpy(np.bincount(place.ravel(), weight[counted], len(rows))),
            torch.from_numpy(np.unique(others, axis=0)),
        )

    def _label_loss(self) -> Loss:
        """The loss, which must be a loss of labels."""
        loss = loss_of(self.loss)
        if not (loss.takes_labels or isinstance(loss, Squared)):
            raise ValueError(
                f"loss must be a loss of labels, such as 'logistic' or 'hinge', not {self.loss!r}."
            )
        return loss

    def _select(self, ranked: Sequence[Choice]) -> Choice:
        return first_with_several_classes(ranked)

    @property
    def _offset(self) -> Float[torch.Tensor, " c"]:
        """What is added to the values of the machine."""
        if "offset_" in vars(self):
            return torch.from_numpy(self.offset_)
        return torch.zeros(self.machine_.coefficients.shape[1], dtype=torch.float64)

    def _set_offset(self, task: MachineTask, scores: Float[torch.Tensor, "t c"], data: Labelled) -> None:
        """Set `offset_` if the strength is chosen and there are points without a label."""
        vars(self).pop("offset_", None)
        others = scores[task.has_no_label]
        is_wanted = self.offset == "auto" and self.strength == "auto" and self.class_weight is None
        if is_wanted and len(others) > 1:
            offsets = offsets_of_classes(two_columns(others), data.codes, data.weights)
            self.offset_ = (offsets if others.shape[1] > 1 else 0.5 * (offsets[1:] - offsets[:1])).numpy()

    def _fixed_settings(self, task: MachineTask) -> tuple[float, float] | None:
        strength = self.strength
        has_choice = task.rows is not None and task.is_folded and not isinstance(task.loss, Multinomial)
        if strength == "auto" and not has_choice:
            strength = self._usual_strength
        if isinstance(strength, str):
            return None
        return self._usual_rate if isinstance(self.C, str) else float(self.C), float(strength)

    def _grid(self) -> Grid:
        """Given values are all there are to choose from; the ones nearest to the usual ones come first."""
        strengths = self._usual_strengths if self.strengths is None else sorted(map(float, self.strengths))
        if self.Cs is not None or not isinstance(self.C, str):
            rates = [float(each) for each in (self.C,) if not isinstance(each, str)]
            rates = sorted(float(each) for each in self.Cs) if self.Cs is not None else rates
            usual = min(rates, key=lambda each: abs(math.log(each / self._usual_rate)))
            return Grid(strengths, self._usual_strength, rates, usual, True)
        rates = [self._usual_rate * factor for factor in (0.1, 1.0, 100.0)]
        return Grid(strengths, self._usual_strength, rates, self._usual_rate)

    def _usual_settings(self, task: MachineTask) -> Usual | None:
        return Usual(self._usual_rate, self._usual_strength, task.bandwidth)

    def _probability_scale(self, task: MachineTask, seed: int) -> float:
        """The softmax scale from cross-validation; losses of invariances are treated as squared.

        If the strength was chosen without random numbers, so are the folds, and no seed matters.
        """
        smallest = int(torch.bincount(task.codes).min())
        if smallest < 2 or isinstance(task.loss, Multinomial):
            return 0.5 if len(task.targets) == 1 else 1.0
        is_drawn = "left_out_loss_" not in vars(self)
        folds = stratified_folds(task.codes, min(5, smallest), seed if is_drawn else self._seed_of(0))
        rates = torch.full((1, 1), self.C_, dtype=torch.float64)
        gram = task.gram(self.strength_)[None]
        scores = held_out_scores(gram, task.basis, task.loss, task.targets, task.weights, rates, folds)
        return cautious_scale(two_columns(scores.values[0, 0].T + self._offset), task.codes, task.weights)


def class_weights(
    weighting: str | Mapping[Any, float] | None,
    classes: NDArray[Any],
    codes: Int[torch.Tensor, " n"],
    weights: Float[torch.Tensor, " n"],
) -> Float[torch.Tensor, " n"]:
    """Weights of rows: as given, times class weights, or balanced between classes (RKHS 6.3)."""
    if weighting is None:
        return weights
    if isinstance(weighting, Mapping):
        factors = [weighting.get(label, 1.0) for label in classes.tolist()]
        if unknown := set(weighting) - set(classes.tolist()):
            raise ValueError(
                f"class_weight names {sorted(map(str, unknown))}, but no rows have these labels."
            )
        for factor in factors:
            check_positive(factor, "A class_weight")
        return weights * torch.tensor(factors, dtype=weights.dtype)[codes]
    if weighting != "balanced":
        raise ValueError(f"class_weight must be None, 'balanced' or a dict, not {weighting!r}.")
    totals = torch.zeros(len(classes), dtype=weights.dtype).index_add(0, codes, weights)
    return weights * weights.sum() / (len(totals) * totals[codes])


def class_codes(codes: Int[torch.Tensor, " n"], num_classes: int) -> Float[torch.Tensor, "c n"]:
    """One-hot codes of labels, one row per class."""
    return torch.nn.functional.one_hot(codes, num_classes).T.double()


def signed_targets(codes: Int[torch.Tensor, " n"], num_classes: int) -> Float[torch.Tensor, "c n"]:
    """±1 for one class against the rest, one row per class; a single row for two classes."""
    signs = 2 * class_codes(codes, num_classes) - 1
    return signs[1:] if num_classes == 2 else signs


def check_positive(value: object, name: str, more: str = "") -> None:
    """Raise a ValueError unless `value` is a positive finite number."""
    if not _is_number(value) or value <= 0:
        raise ValueError(f"{name} must be positive and finite{more}, not {value!r}.")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
