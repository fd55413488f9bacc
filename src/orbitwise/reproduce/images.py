"""Images for the figures of LIM section 5, classifiers of them, and what is measured of a classifier."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from orbitwise import datasets
from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.experiments.mnist import turned
from orbitwise.inference.calibration import expected_calibration_error
from orbitwise.kernels.bases import default_kernel
from orbitwise.orbits.deformations import DeformationOrbit
from orbitwise.orbits.images import ImageOrbit
from orbitwise.orbits.orbit import DrawnOrbit, image_widths
from orbitwise.reproduce.result import Claim, Numbers, Setting
from orbitwise.transforms.images import AFFINE_PARAMETERS

Array = NDArray[Any]
Options = dict[str, Any]

RBF = "RBF"
COLOURS = {
    RBF: "tab:grey",
    "rotation": "tab:blue",
    "affine": "tab:orange",
    "deformation": "tab:green",
    "affine+deformation": "tab:red",
    "fixed rotation": "tab:purple",
}
MANY = 20_000
"""Test images are predicted in parts of at most this size."""


class Images(NamedTuple):
    """Images [n, height, width] with grey levels from 0 to 1, and labels, for learning and for testing."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width."""
        return self.x.shape[1], self.x.shape[2]


def source_of(setting: Setting, num_train: tuple[int, int, int], name: str = "mnist") -> Options:
    """Which images, as options of a cell: how many to learn from at each scale, the rest to test.

    At tiny scale, and where MNIST is not there, they are the 8x8 digits of scikit-learn; at cpu scale those
    of MNIST at half their height and width.
    """
    data = setting.available(name, otherwise="digits")
    is_digits = data == "digits"
    most = 797 if is_digits else 1000
    return {
        "data": data,
        "num_train": setting.pick(*num_train),
        "num_test": setting.pick(200, most, 50_000 if name == "mnist_rot_generated" else 10_000),
        "side": 8 if is_digits else setting.pick(14, 14, 28),
    }


def load_images(data: str, num_train: int, num_test: int, side: int, seed: int = 0) -> Images:
    """Images of a set; those to learn from are a random part of the training images unless all are taken."""
    found, rng = datasets.load(data), np.random.default_rng(seed)
    if data == "digits":
        order = np.random.default_rng(0).permutation(len(found.x))
        x, y = found.x[order] / 16, found.y[order]
        x, x_test, y, y_test = x[:-797], x[-797:], y[:-797], y[-797:]
    else:
        x, x_test = (_pooled(each / np.float32(255), side) for each in (found.x_train, found.x_test))
        y, y_test = found.y_train.astype(np.int64), found.y_test.astype(np.int64)
    if num_train < len(x):
        some = rng.permutation(len(x))[:num_train]
        x, y = x[some], y[some]
    return Images(x.astype(np.float32), y, x_test[:num_test].astype(np.float32), y_test[:num_test])


def _pooled(images: Array, side: int) -> Array:
    """Means of square blocks, so that images have the given side."""
    block = images.shape[1] // side
    if block == 1:
        return images
    return images.reshape(len(images), side, block, side, block).mean((2, 4))


def randomly_turned(images: Images, degrees: float, seed: int) -> Images:
    """Every image turned by a uniform angle between -degrees and degrees."""
    rng, limit = np.random.default_rng([101, seed]), math.radians(degrees)
    x, x_test = (turned(each, rng.uniform(-limit, limit, len(each))) for each in (images.x, images.x_test))
    return Images(x, images.y, x_test, images.y_test)


def orbit_of(
    name: str, shape: tuple[int, int], factor: float = 1.0, two_sided: bool = False, learned: bool = True
) -> DrawnOrbit | None:
    """The orbit of a model in COLOURS, which starts at `factor` times ordinary sizes of moves.

    "rotation" starts at that many times 15 degrees; "deformation" is that of infinite MNIST.
    """
    natural, smoothness = image_widths(shape), min(shape) / 6
    learnable = None if learned else ()
    if name == RBF:
        return None
    if name == "fixed rotation":
        return ImageOrbit(shape, {"angle": math.pi}, learnable=())
    if name == "deformation":
        sides = ("thickness",) if two_sided else ()
        return DeformationOrbit(
            shape,
            factor * natural["amplitude"],
            smoothness,
            factor * natural["thickness"],
            learnable=learnable,
            two_sided=sides,
        )
    moves = ("angle",) if name == "rotation" else AFFINE_PARAMETERS
    amplitude = factor * natural["amplitude"] if name == "affine+deformation" else 0.0
    affine = {move: factor * natural[move] for move in moves}
    sides = tuple(affine) if two_sided else ()
    return ImageOrbit(shape, affine, amplitude, smoothness, learnable, sides)


def fitted(
    images: Images, orbit: DrawnOrbit | None, settings: Mapping[str, Any], seed: int, device: str
) -> tuple[InvariantGPClassifier, Numbers]:
    """A classifier with an RBF base kernel and further settings, and what it says of the images."""
    rows = torch.from_numpy(images.x.reshape(len(images.x), -1)).double()
    kernel = default_kernel(rows, separate_lengthscales=False)
    model = InvariantGPClassifier(kernel, orbit, random_state=seed, device=device, **settings)
    start = time.perf_counter()
    model.fit(images.x, images.y)
    seconds = time.perf_counter() - start
    return model, {"fit_seconds": round(seconds, 2)} | measured(model, images)


def measured(model: InvariantGPClassifier, images: Images) -> Numbers:
    """Error in percent, log loss and calibration on the test images; evidence, noise and learned ranges."""
    parts = np.array_split(images.x_test, 1 + len(images.x_test) // MANY)
    probabilities = torch.from_numpy(np.concatenate([model.predict_proba(part) for part in parts]))
    codes = torch.from_numpy(np.searchsorted(model.classes_, images.y_test))
    result = model.fit_result_
    return {
        "error": 100 * float((probabilities.argmax(1) != codes).double().mean()),
        "log_loss": float(torch.nn.functional.nll_loss(probabilities.clamp_min(1e-12).log(), codes)),
        "calibration_error": expected_calibration_error(probabilities, codes),
        "confidence": float(probabilities.max(1).values.mean()),
        "log_evidence": model.log_evidence_,
        "evidence_error": model.log_evidence_error_,
        "half_bound": result.half_bound,
        "num_inducing": getattr(model, "num_inducing_", None),
        "noise": getattr(model, "noise_", None),
        "ranges": {} if model.orbit_ is None else {k: list(v) for k, v in model.orbit_.learned().items()},
        "num_test": len(images.y_test),
    }


def classify(
    images: Mapping[str, Any],
    degrees: float,
    model: str,
    factor: float,
    two_sided: bool,
    settings: Mapping[str, Any],
    seed: int,
    device: str,
) -> Numbers:
    """One fit of a model in COLOURS, by stochastic inference unless settings name another; perhaps turned."""
    found = load_images(**images, seed=seed)
    if degrees > 0:
        found = randomly_turned(found, degrees, seed)
    orbit = orbit_of(model, found.shape, factor, two_sided)
    return fitted(found, orbit, {"inference": "variational", **settings}, seed, device)[1]


def difference_error(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """The standard error of a difference of two test errors in percent, as if the test sets were two."""
    parts = [each["error"] / 100 for each in (first, second)]
    return 100 * math.sqrt(sum(max(part * (1 - part), 1e-6) for part in parts) / first["num_test"])


def is_decided(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether the first bound is greater, also with half the inducing points and beyond twice the errors.

    The slack of a bound depends on the orbit, so an order that reverses as inducing points double, or a
    difference that more than halves, is no order.
    """
    nats = first["log_evidence"] - second["log_evidence"]
    error = math.hypot(first["evidence_error"], second["evidence_error"])
    halves = [each["half_bound"] for each in (first, second)]
    if None in halves:
        return nats > 2 * error
    half = halves[0] - halves[1]
    return nats > 2 * error and 0 < half < 2 * nats


def order_claim(fits: Mapping[str, Sequence[Mapping[str, Any]]], printed: str) -> Claim:
    """Whether the bounds order models as their test errors do, from the fits of every model, one per seed.

    Only pairs whose bounds and whose errors differ by more than twice their standard errors say anything.
    """
    agree, against, undecided = [], [], []
    names = sorted(fits, key=lambda model: -mean_over(fits[model], "log_evidence"))
    for first, second in itertools.combinations(names, 2):
        pairs = list(zip(fits[first], fits[second], strict=True))
        if not all(is_decided(*pair) for pair in pairs):
            undecided.append(f"{first} and {second}")
            continue
        gap = mean_over(fits[second], "error") - mean_over(fits[first], "error")
        error = difference_error(*pairs[0]) / math.sqrt(len(pairs))
        if gap < -2 * error:
            against.append(f"{first} before {second}")
        elif gap > 2 * error:
            agree.append(f"{first} before {second}")
    brackets = "; ".join(f"{model} {bound_text(fits[model])}" for model in names)
    count = f"{len(agree)} pairs of models have the same order by bound and by error, {len(against)} another"
    because = f"the bounds put {', '.join(against)}, the errors do not" if against else ""
    verdict = "holds" if agree and not against else "does not hold" if against else "undecided"
    if undecided:
        clause = f"bounds do not decide between {', between '.join(undecided)}"
        because = f"{because}; {clause}" if because else clause
    elif verdict == "undecided":
        because = "no two errors differ by more than their standard errors"
    is_exact = all(fit["half_bound"] is None for own in fits.values() for fit in own)
    what = "Evidence" if is_exact else "Bounds with half and with all inducing points"
    measured = f"{count}. {what}, in nats: {brackets}"
    return Claim("The bound identifies the best model", printed, measured, verdict, because)


def bound_text(fits: Sequence[Mapping[str, Any]]) -> str:
    """The mean bounds with half of the inducing points and with all."""
    whole = f"{mean_over(fits, 'log_evidence'):,.0f}"
    return whole if fits[0]["half_bound"] is None else f"{mean_over(fits, 'half_bound'):,.0f} to {whole}"


def mean_over(fits: Sequence[Mapping[str, Any]], key: str) -> float:
    """The mean of a number over fits."""
    return sum(fit[key] for fit in fits) / len(fits)


def degrees_of(numbers: Mapping[str, Any]) -> float:
    """The half-width of the learned angle, in degrees."""
    low, high = numbers["ranges"]["angle"]
    return math.degrees((high - low) / 2)


def legend(axis: Axes, title: str, xlabel: str, ylabel: str, logarithmic: bool = False) -> None:
    """A title, labels, a legend without repetitions, and perhaps a logarithmic abscissa."""
    axis.set(title=title, xlabel=xlabel, ylabel=ylabel)
    if logarithmic:
        axis.set_xscale("log")
    handles, labels = axis.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if unique:
        axis.legend(unique.values(), unique.keys(), fontsize=7)
