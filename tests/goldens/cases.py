"""Small fits of every estimator, engine and kind of invariance, and the numbers that describe them.

Each case is a recipe: an estimator with its settings, training data, and new rows to predict. `observed`
turns a fitted estimator into plain numbers. `numbers.json` holds those of the code that wrote it, and
`test_numbers.py` compares. The data come from formulas and from scikit-learn's digits, so no random stream
of NumPy can change them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from orbitwise import (
    AutoGPRegressor,
    InvariantGPClassifier,
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    LaplacianSVC,
    SparseGPRegressor,
    VirtualSVC,
    kernels,
)
from orbitwise.functionals import (
    Difference,
    DirectionalDerivative,
    Evaluation,
    Gradient,
    OrbitAverage,
    OrbitSum,
)
from orbitwise.likelihoods import Bernoulli, Dirichlet
from orbitwise.losses import EpsilonInsensitive, Hinge
from orbitwise.orbits import (
    ComposedOrbit,
    CropOrbit,
    DeformationOrbit,
    FiniteOrbit,
    ImageOrbit,
    JitterOrbit,
    MirrorOrbit,
    PatchOrbit,
    PointCloudOrbit,
    SampledOrbit,
    SignalOrbit,
    WeightedOrbit,
)
from orbitwise.transforms import Rotation, coordinate_permutations, negation

FIXED = 1e-8
"""Relative tolerance where all parameters are fixed, so that only the order of sums may change."""
CALIBRATED = 1e-6
"""Relative tolerance of probabilities and held-out losses, whose scale a search on an interval sets."""
FITTED = 1e-4
"""Relative tolerance after a few iterations of learning, which amplify rounding."""
MACHINE = 1e-6
"""Relative tolerance of kernel machines, whose solvers stop at a certified gap."""
SEARCHED = 1e-3
"""Relative tolerance of searched models, whose hyperparameters an optimiser found."""

Array = NDArray[np.float64]


def spread(count: int, width: int, start: int = 1) -> Array:
    """Rows in [-2, 2]^width that fill it evenly: fractional parts of multiples of irrational numbers."""
    steps = np.sqrt(np.array([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0, 29.0, 31.0, 37.0])[:width])
    return 4 * (np.outer(np.arange(start, start + count), steps) % 1) - 2


X, NEW = spread(26, 3), spread(5, 3, 60)
Y = np.sin(X.sum(1)) + 0.3 * np.cos(2 * X.prod(1)) + 0.05 * spread(26, 1, 90)[:, 0]
TWO_OUTPUTS = np.stack([Y, X[:, 0] ** 2 + Y], axis=1)
WEIGHT = np.where(np.arange(26) % 5 == 0, 2.0, 1.0)
LABELS = np.array(["low", "middle", "high"])[np.digitize(Y, [-0.4, 0.4])]
TWO_CLASSES = (Y > 0.1).astype(int)
MORE = spread(6, 3, 120)

SIGNALS, NEW_SIGNALS = spread(20, 8), spread(4, 8, 60)
CLOUDS, NEW_CLOUDS = spread(20, 6), spread(4, 6, 60)
LINE, NEW_LINE = spread(24, 1), spread(4, 1, 60)
WAVE = np.cos(np.pi * (LINE[:, 0] - 0.5)) + 0.05 * spread(24, 1, 90)[:, 0]


def _digits() -> tuple[Array, NDArray[np.int64], Array]:
    """Images 8 x 8 of the digits 0, 1 and 2, their labels, and five more images."""
    images, labels = load_digits(return_X_y=True)
    rows = np.flatnonzero(labels < 3)[:29]
    images = images[rows].reshape(-1, 8, 8) / 16
    return images[:24], labels[rows[:24]], images[24:]


IMAGES, DIGITS, NEW_IMAGES = _digits()
AMOUNTS = IMAGES.sum((1, 2)) / 10 + DIGITS


@dataclass(frozen=True)
class Case:
    """An estimator, what it is fitted to, and what it predicts."""

    make: Callable[[], Any]
    data: tuple[Any, ...]
    new: Array
    tolerance: float = FIXED
    options: dict[str, Any] = field(default_factory=dict)

    def tolerance_of(self, name: str) -> float:
        """The relative tolerance of one of the `observed` numbers."""
        calibrated = name in ("predict_proba", "leave_one_out_log_loss_", "scale_")
        return max(self.tolerance, CALIBRATED) if calibrated else self.tolerance

    def fitted(self) -> Any:
        """The estimator after `fit`; few iterations, or labels that say little, are meant here."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.make().fit(*self.data, **self.options)


def kernel(lengthscale: float = 1.3, scale: float = 1.7, base: type[Kernel] = RBFKernel) -> Kernel:
    """A scaled stationary kernel with hyperparameters that nothing learned."""
    made = ScaleKernel(base()).double()
    made.base_kernel.lengthscale = lengthscale
    made.outputscale = scale
    return made


def held(module: Any) -> Any:
    """The kernel or orbit with parameters that engines leave as they are."""
    return module.double().requires_grad_(False)


def permutations() -> FiniteOrbit:
    """All orders of three columns."""
    return FiniteOrbit(coordinate_permutations(3))


def images_around(**amplitude: float) -> ImageOrbit:
    """Images turned, shifted and perhaps deformed, within ranges that nothing learned."""
    return ImageOrbit((8, 8), {"angle": 0.4, "shift_x": 0.1}, **amplitude)


SLOPE = DirectionalDerivative(torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64))
ENGINES = ("exact", "collapsed", "variational")

OF_TABLES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "permutation": lambda: "permutation",
    "negation": lambda: "negation",
    "cyclic": lambda: "cyclic",
    "sign": lambda: "sign",
    "jitter": lambda: JitterOrbit(3, 0.2),
    "mirror": lambda: MirrorOrbit(0.3, (1,)),
    "turn": lambda: ComposedOrbit(FiniteOrbit(negation(3)), JitterOrbit(3, 0.1)),
    "subsampled": lambda: FiniteOrbit(coordinate_permutations(3), num_samples=4),
    "sum": lambda: OrbitSum(permutations()),
    "sum of functionals": lambda: OrbitAverage(permutations()) + Evaluation(),
}
OF_IMAGES: dict[str, Callable[[], Any]] = {
    "rotation": lambda: "rotation",
    "affine": lambda: "affine",
    "affine+deformation": lambda: "affine+deformation",
    "flip": lambda: "flip",
    "flip+quarter_turn": lambda: "flip+quarter_turn",
    "given ranges": lambda: images_around(amplitude=0.5),
    "crop": lambda: CropOrbit((8, 8), 0.2, 0.1),
    "tangents": lambda: DeformationOrbit((8, 8), 0.3, 2.0),
    "patches": lambda: WeightedOrbit(PatchOrbit((8, 8), (4, 4), 2)),
}


def regressors() -> Iterator[tuple[str, Case]]:
    """InvariantGPRegressor: every engine and kind of invariance, weights, outputs, means, observations."""

    def model(invariance: Any = None, **settings: Any) -> Callable[[], Any]:
        def make() -> Any:
            what = invariance() if callable(invariance) and not isinstance(invariance, type) else invariance
            chosen: dict[str, Any] = {"max_iterations": 0, "num_nodes": 4, "random_state": 0, **settings}
            given = chosen.pop("kernel", kernel)
            return InvariantGPRegressor(given and given(), what, **chosen)

        return make

    table = (X, Y)
    for name, invariance in OF_TABLES.items():
        if name != "subsampled":
            yield f"exact, {name}", Case(model(invariance, noise=0.02), table, NEW)
    for name in ("none", "permutation", "jitter", "mirror", "subsampled", "sum"):
        settings = {"inference": "collapsed", "num_inducing": 12, "noise": 0.02}
        yield f"collapsed, {name}", Case(model(OF_TABLES[name], **settings), table, NEW)
    steps: dict[str, Any] = {"inference": "variational", "num_inducing": 10, "num_steps": 6, "batch_size": 9}
    for name in ("none", "permutation", "jitter"):
        yield f"variational, {name}", Case(model(OF_TABLES[name], **steps), table, NEW, FITTED)
    for name in ("rotation", "flip", "affine+deformation", "crop", "tangents"):
        case = Case(model(OF_IMAGES[name], kernel=None), (IMAGES, AMOUNTS), NEW_IMAGES)
        yield f"exact, {name}", case
    yield (
        "exact, signals",
        Case(model(lambda: SignalOrbit(8, shift=1.0, jitter=0.1)), (SIGNALS, Y[:20]), NEW_SIGNALS),
    )
    yield (
        "exact, points",
        Case(model(lambda: PointCloudOrbit(2, 3, angle=0.4, shift=0.1)), (CLOUDS, Y[:20]), NEW_CLOUDS),
    )
    yield (
        "exact, turned plane",
        Case(model(lambda: SampledOrbit(Rotation(3), -0.2, [0.1, 0.2, 0.3])), (CLOUDS, Y[:20]), NEW_CLOUDS),
    )
    yield "exact, default kernel", Case(model(kernel=None), table, NEW)
    yield "exact, matern", Case(model(kernel=lambda: kernel(base=MaternKernel)), table, NEW)
    yield (
        "exact, parsed kernel",
        Case(model(kernel=lambda: kernels.parse("rbf[0] + periodic[1] * linear[2]")), table, NEW),
    )
    yield "exact, two outputs", Case(model("permutation"), (X, TWO_OUTPUTS), NEW)
    yield (
        "collapsed, two outputs",
        Case(model("permutation", inference="collapsed", num_inducing=12), (X, TWO_OUTPUTS), NEW),
    )
    yield "exact, weights", Case(model("negation"), (X, Y, WEIGHT), NEW)
    yield "exact, linear mean", Case(model(mean="linear", max_iterations=4), table, NEW, FITTED)
    yield "exact, constant mean", Case(model("permutation", mean="constant"), table, NEW)
    yield "exact, targets as given", Case(model(normalize_y=False), table, NEW)
    yield "exact, no noise", Case(model(noise=0.0), table, NEW, 1e-6)
    slopes = [
        (Gradient(), MORE, np.cos(MORE), None),
        (SLOPE, NEW, NEW[:, 0], 0.1),
        (Difference(), np.stack([MORE, -MORE], axis=1), np.zeros(6), 0.05),
    ]
    yield "exact, observations", Case(model(noise=0.02), table, NEW, options={"observations": slopes})
    yield "exact, fitted", Case(model("permutation", max_iterations=6), table, NEW, FITTED)
    yield "exact, fitted jitter", Case(model(OF_TABLES["jitter"], max_iterations=3), table, NEW, FITTED)
    yield (
        "collapsed, fitted",
        Case(
            model("permutation", inference="collapsed", num_inducing=8, max_iterations=4), table, NEW, FITTED
        ),
    )


def classifiers() -> Iterator[tuple[str, Case]]:
    """InvariantGPClassifier: every engine, likelihood and kind of invariance."""

    def model(invariance: Any = None, **settings: Any) -> Callable[[], Any]:
        def make() -> Any:
            fixed = {"max_iterations": 0, "num_nodes": 4, "random_state": 0, "noise": "evidence"}
            chosen: dict[str, Any] = {**fixed, **settings}
            what = invariance() if callable(invariance) else invariance
            given = chosen.pop("kernel", None)
            return InvariantGPClassifier(given and given(), what, **chosen)

        return make

    images = (IMAGES, DIGITS)
    for name in ("none", "permutation", "negation", "jitter", "sum"):
        yield f"exact, {name}", Case(model(OF_TABLES[name]), (X, LABELS), NEW)
    for name, invariance in OF_IMAGES.items():
        yield f"exact, {name}", Case(model(invariance), images, NEW_IMAGES)
    yield "exact, two classes", Case(model("negation"), (X, TWO_CLASSES), NEW)
    yield "exact, leave one out", Case(model("permutation", noise="leave_one_out"), (X, LABELS), NEW, FITTED)
    sparse = {"inference": "collapsed", "num_inducing": 12}
    counted = {"stick_breaking": Bernoulli(20.0, 0.2), "dirichlet": Dirichlet(count=20.0)}
    for coding, likelihood in counted.items():
        # nothing is left to learn in such a kernel, invariance and likelihood
        yield (
            f"collapsed, {coding}",
            Case(
                model("permutation", likelihood=likelihood, kernel=lambda: held(kernel()), **sparse),
                (X, LABELS),
                NEW,
            ),
        )
    yield (
        "collapsed, stick_breaking of two classes",
        Case(
            model(None, likelihood="stick_breaking", kernel=lambda: held(kernel()), **sparse),
            (X, TWO_CLASSES),
            NEW,
        ),
    )
    yield (
        "collapsed, stick_breaking of held images",
        Case(
            model(
                lambda: held(images_around(amplitude=0.3)),
                likelihood=counted["stick_breaking"],
                kernel=lambda: held(kernel(3.0)),
                **sparse,
            ),
            images,
            NEW_IMAGES,
        ),
    )
    for name in ("rotation", "flip"):
        yield f"collapsed, {name}", Case(model(name, **sparse), images, NEW_IMAGES, FITTED)
    yield (
        "collapsed, affine+deformation",
        Case(model("affine+deformation", **sparse), images, NEW_IMAGES, FITTED),
    )
    steps: dict[str, Any] = {"inference": "variational", "num_inducing": 8, "num_steps": 4, "batch_size": 8}
    for coding in ("one_hot", "stick_breaking", "dirichlet"):
        yield (
            f"variational, {coding}",
            Case(model("rotation", likelihood=coding, **steps), images, NEW_IMAGES, FITTED),
        )
    yield "exact, fitted rotation", Case(model("rotation", max_iterations=3), images, NEW_IMAGES, FITTED)


def sparse_regressors() -> Iterator[tuple[str, Case]]:
    """SparseGPRegressor: every bound, selection and domain, weights, outputs, batches."""

    def model(invariance: Any = None, **settings: Any) -> Callable[[], Any]:
        def make() -> Any:
            chosen: dict[str, Any] = {"max_iterations": 0, "num_inducing": 8, "noise": 0.02, **settings}
            what = invariance() if callable(invariance) else invariance
            given = chosen.pop("kernel", kernel)
            return SparseGPRegressor(given and given(), what, num_nodes=8, random_state=0, **chosen)

        return make

    table = (X, Y)
    for bound in ("tight", "titsias", "cg"):
        yield f"{bound}, domain f", Case(model("negation", bound=bound), table, NEW)
        # many atoms put the inducing variables in g
        yield (
            f"{bound}, domain g",
            Case(model(OF_TABLES["jitter"], bound=bound), table, NEW, FIXED if bound != "cg" else 1e-6),
        )
    for selection in ("greedy", "kmeans", "random"):
        yield f"tight, {selection}", Case(model("permutation", selection=selection), table, NEW)
    yield "tight, images", Case(model("rotation", kernel=None), (IMAGES, AMOUNTS), NEW_IMAGES)
    yield "tight, weights", Case(model("permutation"), (X, Y, WEIGHT), NEW)
    yield "tight, two outputs", Case(model(None, noise=None), (X, TWO_OUTPUTS), NEW)
    yield "tight, linear mean", Case(model(None, mean="linear", max_iterations=3), table, NEW, FITTED)
    yield "tight, number found", Case(model(None, num_inducing="auto", tolerance=0.3), table, NEW)
    yield "tight, fitted", Case(model("permutation", max_iterations=5, noise=None), table, NEW, FITTED)
    yield (
        "titsias, fitted",
        Case(model(OF_TABLES["jitter"], max_iterations=3, bound="titsias"), table, NEW, FITTED),
    )


def machines() -> Iterator[tuple[str, Case]]:
    """InvariantSVC, LaplacianSVC, VirtualSVC and InvariantKernelRidge.

    Their solvers stop at a gap, so that decisions are known to about its square root.
    """
    table, images = (X, LABELS), (IMAGES, DIGITS)
    two = (X, TWO_CLASSES)
    for name in ("gradient", "local_average", "graph", "deletion"):
        yield (
            f"svc, {name}",
            Case(lambda name=name: InvariantSVC(random_state=0, invariance=name), two, NEW, MACHINE),
        )
    for name in ("tangent", "moves", "differences"):
        yield (
            f"svc, {name}",
            Case(
                lambda name=name: InvariantSVC(random_state=0, invariance=name), images, NEW_IMAGES, MACHINE
            ),
        )
    yield "svc, none", Case(lambda: InvariantSVC(random_state=0, invariance=None), table, NEW, MACHINE)
    yield "svc, unlabelled rows", Case(lambda: InvariantSVC(random_state=0), (*two, MORE), NEW, MACHINE)
    yield "svc, weights", Case(lambda: InvariantSVC(random_state=0), (*two, None, WEIGHT), NEW, MACHINE)
    yield (
        "svc, functionals",
        Case(
            lambda: InvariantSVC(
                random_state=0,
                invariance=[(Difference(), np.stack([MORE, -MORE], axis=1)), (Gradient([1]), MORE)],
            ),
            two,
            NEW,
            MACHINE,
        ),
    )
    yield "svc, kernel", Case(lambda: InvariantSVC(kernel(), random_state=0), two, NEW, MACHINE)
    yield (
        "svc, hinge",
        Case(
            lambda: InvariantSVC(random_state=0, loss=Hinge(0.3), class_weight="balanced"), two, NEW, MACHINE
        ),
    )
    yield (
        "svc, squared hinge",
        Case(lambda: InvariantSVC(random_state=0, loss="squared_hinge", basis="linear"), table, NEW, MACHINE),
    )
    yield (
        "svc, other loss of rows",
        Case(
            lambda: InvariantSVC(kernel(), invariance_loss=EpsilonInsensitive(0.2, 0.1), random_state=0),
            two,
            NEW,
            MACHINE,
        ),
    )
    yield (
        "svc, multinomial",
        Case(lambda: InvariantSVC(random_state=0, multi_class="multinomial"), table, NEW, MACHINE),
    )
    yield (
        "svc, evidence",
        Case(
            lambda: InvariantSVC(random_state=0, strength="evidence", Cs=[1.0, 10.0], strengths=[0.0, 0.1]),
            two,
            NEW,
            MACHINE,
        ),
    )
    yield (
        "svc, cross-validation",
        Case(
            lambda: InvariantSVC(
                random_state=0, strength="cross_validation", Cs=[1.0, 10.0], strengths=[0.1]
            ),
            two,
            NEW,
            MACHINE,
        ),
    )
    yield "laplacian, heat", Case(lambda: LaplacianSVC(random_state=0), (*table, MORE), NEW, MACHINE)
    yield (
        "laplacian, binary",
        Case(
            lambda: LaplacianSVC(random_state=0, num_neighbours=3, weighting="binary", normalized=False),
            two,
            NEW,
            MACHINE,
        ),
    )
    yield (
        "laplacian, cross-validation",
        Case(
            lambda: LaplacianSVC(
                random_state=0, strength="cross_validation", Cs=[1.0], strengths=[0.1], neighbours=[2, 4]
            ),
            two,
            NEW,
            MACHINE,
        ),
    )
    for virtual in ("samples", "support_vectors"):
        yield (
            f"virtual, moves of {virtual}",
            Case(lambda virtual=virtual: VirtualSVC("moves", virtual=virtual), images, NEW_IMAGES, MACHINE),
        )
    yield (
        "virtual, orbit",
        Case(
            lambda: VirtualSVC(images_around(amplitude=0.5), num_copies=3, random_state=0),
            images,
            NEW_IMAGES,
            MACHINE,
        ),
    )
    yield "virtual, none", Case(lambda: VirtualSVC(C=10.0), table, NEW, MACHINE)
    for name in ("gradient", "graph", None):
        yield (
            f"ridge, {name or 'none'}",
            Case(lambda name=name: InvariantKernelRidge(invariance=name), (X, Y), NEW, MACHINE),
        )
    yield (
        "ridge, tangent",
        Case(lambda: InvariantKernelRidge(invariance="tangent"), (IMAGES, AMOUNTS), NEW_IMAGES, MACHINE),
    )
    yield (
        "ridge, two outputs and unlabelled rows",
        Case(lambda: InvariantKernelRidge(), (X, TWO_OUTPUTS, MORE, WEIGHT), NEW, MACHINE),
    )
    yield "ridge, absolute", Case(lambda: InvariantKernelRidge(loss="absolute"), (X, Y), NEW, MACHINE)
    yield (
        "ridge, evidence",
        Case(
            lambda: InvariantKernelRidge(strength="evidence", Cs=[1.0, 10.0], strengths=[0.0, 0.1]),
            (X, Y),
            NEW,
            MACHINE,
        ),
    )


def searches() -> Iterator[tuple[str, Case]]:
    """AutoGPRegressor: one base kernel, alone or with an invariance that the data have."""
    quick: dict[str, Any] = {"num_restarts": 0, "verbose": False, "random_state": 0}
    yield (
        "bic",
        Case(
            lambda: AutoGPRegressor(max_depth=0, base_kernels=["rbf", "linear"], invariances=None, **quick),
            (LINE, WAVE),
            NEW_LINE,
            SEARCHED,
        ),
    )
    for name, invariance in (("mirror", "mirror[0]"), ("period", "period[0](period=2)")):
        yield (
            f"laplace, {name}",
            Case(
                lambda invariance=invariance: AutoGPRegressor(
                    **quick | {"num_restarts": 1},
                    scoring="laplace",
                    max_depth=0,
                    base_kernels=["matern52"],
                    invariances=[invariance],
                ),
                (LINE, WAVE),
                NEW_LINE,
                SEARCHED,
            ),
        )


KINDS: dict[str, Callable[[], Iterator[tuple[str, Case]]]] = {
    "InvariantGPRegressor": regressors,
    "InvariantGPClassifier": classifiers,
    "SparseGPRegressor": sparse_regressors,
    "machines": machines,
    "AutoGPRegressor": searches,
}
CASES: dict[str, Case] = {f"{kind}: {name}": case for kind, cases in KINDS.items() for name, case in cases()}


def observed(model: Any, new: Array) -> dict[str, Any]:
    """What a golden file holds of a fitted estimator: evidence, learned numbers, predictions."""
    found: dict[str, Any] = {}
    for name in (
        *("log_evidence_", "evidence_kind_", "noise_", "observation_noise_", "leave_one_out_log_loss_"),
        *("inference_", "objective_", "C_", "strength_", "bandwidth_", "scale_", "cv_error_", "num_samples_"),
        *("spelling_", "invariance_", "score_", "mean_", "num_neighbours_"),
    ):
        if hasattr(model, name):
            found[name] = getattr(model, name)
    if hasattr(model, "certificate_"):
        certificate = model.certificate_
        found |= {"upper": certificate.upper, "num_inducing": certificate.num_inducing}
    if getattr(model, "orbit_", None) is not None:
        learned = model.orbit_.learned()
        found |= {f"range of {name}": list(interval) for name, interval in learned.items()}
    if "return_std" in signature(model.predict).parameters:
        found["mean"], found["deviation"] = model.predict(new, return_std=True)
        found["mean alone"] = model.predict(new)
        _, found["covariance"] = model.predict(new[:2], return_cov=True, include_noise=False)
    else:
        found["prediction"] = model.predict(new)
    for name in ("predict_proba", "decision_function"):
        if hasattr(model, name):
            found[name] = getattr(model, name)(new)
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


MODEL_FILES = {
    "exact_regressor": "InvariantGPRegressor: exact, jitter",
    "exact_regressor_of_slopes": "InvariantGPRegressor: exact, observations",
    "collapsed_regressor": "InvariantGPRegressor: collapsed, permutation",
    "variational_regressor": "InvariantGPRegressor: variational, permutation",
    "exact_classifier": "InvariantGPClassifier: exact, rotation",
    "collapsed_classifier": "InvariantGPClassifier: collapsed, stick_breaking",
    "dirichlet_classifier": "InvariantGPClassifier: collapsed, dirichlet",
    "sparse_regressor": "SparseGPRegressor: tight, domain f",
    "sparse_regressor_cg": "SparseGPRegressor: cg, domain g",
    "svc": "machines: svc, gradient",
    "svc_of_functionals": "machines: svc, functionals",
    "laplacian_svc": "machines: laplacian, heat",
    "virtual_svc": "machines: virtual, none",
    "kernel_ridge": "machines: ridge, gradient",
    "searched_regressor": "AutoGPRegressor: laplace, period",
}
"""Files of `models/`, each a fit of a case to its first rows only, so that files stay small."""
MODEL_ROWS = 10


def stored_case(name: str) -> Case:
    """The case of a model file."""
    case = CASES[MODEL_FILES[name]]
    rows = len(case.data[0])
    short = tuple(part[:MODEL_ROWS] if part is not None and len(part) == rows else part for part in case.data)
    return replace(case, data=short)
