"""What estimators accept: settings, the form of the data, targets, and weights that count rows.

Data are a table, or images, signals and clouds of points with dimensions of their own, as arrays, tensors,
data frames or lists. Dates and durations are refused, because they are not numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from functools import wraps
from itertools import pairwise
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeGuard,
    TypeVar,
    Union,
    cast,
    final,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_array, validate_data
from torch import nn

from orbitwise.declarations import Stored, require
from orbitwise.estimators.cells import explained
from orbitwise.estimators.invariances import (
    PLURALS,
    check_family,
    check_picture,
    family_of,
    is_picture,
    named,
    not_a_table,
    own_shape,
)
from orbitwise.transforms.images import check_image_shape

P = ParamSpec("P")
R = TypeVar("R")
Order = Literal["first", "last"]
Channels = Literal["auto", "first", "last"]
Brightness = Literal["bytes", "unit"]  # whole numbers up to 255, or fractions up to 1
COUNTS = (1, 3, 4)
"""Channels that pictures have: grey, colour, colour and transparency."""
MOMENTS = (date, time, timedelta, np.datetime64, np.timedelta64)
BRIGHT_ROWS = 1_000  # images whose pixels are looked at
ASK = 'say which with channels="first" or channels="last"'


@final
@dataclass(frozen=True)
class InputForm:
    """The form of the inputs that an estimator was fitted to.

    `image_shape` is the shape of one image with its channels first, None for other data, and `channels` says
    in which order images were given. `input_shape` is that of a signal or a cloud that came with dimensions.
    `background` is the darkest value of images that are warped, which is taken off because warps fill with 0.
    `brightness` says what the pixels of images were.
    """

    image_shape: tuple[int, ...] | None = None
    channels: Order | None = None
    input_shape: tuple[int, ...] | None = None
    background: float = 0.0
    brightness: Brightness | None = None

    stored = Stored()

    def check_fitted(self, width: int, estimator: object) -> None:
        """Raise a ValueError where this is not the form of the `width` features of a fitted estimator."""
        shape, own = self.image_shape, self.input_shape
        is_image = shape is None or (len(shape) in (2, 3) and math.prod(shape) == width)
        require(is_image, "images of another shape")
        require(own is None or (len(own) in (2, 3) and math.prod(own) == width), "inputs of another shape")
        require(self.channels in (None, "first", "last"), "channels that are neither first nor last")
        has_channels = shape is not None and len(shape) == 3
        require(self.channels is None or has_channels, "channels of images that have none")
        require(self.brightness in (None, "bytes", "unit"), "pixels of an unknown kind")
        names, classes = (getattr(estimator, name, None) for name in ("feature_names_in_", "classes_"))
        if names is not None:
            require(names.shape == (width,), "other names of features than it has features")
            require(all(isinstance(each, str) for each in names), "names of features that are no text")
        if classes is not None:
            _check_classes(classes)

    @property
    def given(self) -> tuple[int, ...] | None:
        """The shape of one image as it is given."""
        if self.image_shape is None or self.channels != "last":
            return self.image_shape
        return (*self.image_shape[1:], self.image_shape[0])

    def inward(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows [..., d] as they are given, with their channels first."""
        return self._reordered(rows, self.given, -1, -3)

    def outward(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows [..., d] with their channels first, as they are given."""
        return self._reordered(rows, self.image_shape, -3, -1)

    def require_channels_first(self, what: str) -> None:
        """Raise a ValueError where `what` speaks of single pixels and these have their channels last."""
        if self.channels == "last":
            raise ValueError(
                f"{what} go with rows that have their channels first: fit to images "
                "[n, channels, height, width], np.moveaxis(X, -1, 1)."
            )

    def _reordered(
        self, rows: NDArray[np.float64], shape: tuple[int, ...] | None, start: int, end: int
    ) -> NDArray[np.float64]:
        if self.channels != "last" or shape is None:
            return rows
        if math.prod(shape) != rows.shape[-1]:
            raise ValueError(
                f"Images of shape {shape} have {math.prod(shape)} numbers, but the inputs have width "
                f"{rows.shape[-1]}."
            )
        images = rows.reshape(*rows.shape[:-1], *shape)
        return np.ascontiguousarray(np.moveaxis(images, start, end)).reshape(rows.shape)


def check_channels(channels: object) -> None:
    """Raise a ValueError unless `channels` says "auto", "first" or "last"."""
    if not isinstance(channels, str) or channels not in ("auto", "first", "last"):
        raise ValueError(f"channels must be 'auto', 'first' or 'last', not {channels!r}.")


def channel_order(shape: Sequence[int], channels: str = "auto", ask: str = ASK) -> Order:
    """Where three axes of one image have their channels; a ValueError that `ask`s where they do not tell.

    Channels are an axis of 1, 3 or 4 at either end, beside a picture of at least 2 x 2 pixels.
    """
    check_channels(channels)
    if channels != "auto":
        return cast(Order, channels)
    front, middle, back = shape
    fits = {
        "first": front in COUNTS and min(middle, back) > 1,
        "last": back in COUNTS and min(front, middle) > 1,
    }
    found = [order for order, fit in fits.items() if fit]
    if len(found) == 1:
        return cast(Order, found[0])
    why = "both the first and the last axis" if found else "neither the first nor the last axis"
    raise ValueError(
        f"Images of shape {tuple(shape)} may have their channels first or last: {why} could be 1, 3 or 4 "
        f"channels; {ask}."
    )


def image_layout(
    dimensions: Sequence[int] | None,
    image_shape: Sequence[int] | None = None,
    channels: str = "auto",
    ask: str = ASK,
) -> InputForm:
    """The layout of images that come with their `dimensions`, or in rows, or with an announced `image_shape`.

    `image_shape` is (height, width), or three sizes in the order of `channels`. The height and width alone
    settle the order of images that come with channels.
    """
    if image_shape is not None:
        check_image_shape(image_shape)
        image_shape = tuple(int(size) for size in image_shape)
    if dimensions is None:
        return InputForm() if image_shape is None else _in_order(image_shape, channels, ask)
    if image_shape is None or tuple(dimensions) == image_shape:
        return _in_order(dimensions, channels, ask)
    if len(image_shape) == 2 and len(dimensions) == 3:
        orders: dict[Order, Sequence[int]] = {"first": dimensions[1:], "last": dimensions[:-1]}
        meant = [order for order, plane in orders.items() if tuple(plane) == image_shape]
        if channels in meant or (channels == "auto" and len(meant) == 1):
            return _in_order(dimensions, meant[0] if channels == "auto" else channels, ask)
    raise ValueError(f"X has images of shape {tuple(dimensions)}, but image_shape is {image_shape}.")


def _in_order(shape: Sequence[int], channels: str, ask: str) -> InputForm:
    sizes = tuple(int(size) for size in shape)
    if len(sizes) == 2:
        return InputForm(sizes)
    order = channel_order(sizes, channels, ask)
    return InputForm(sizes if order == "first" else (sizes[2], *sizes[:2]), order)


def input_shape(estimator: object) -> tuple[int, ...] | None:
    """The shape of one image, signal or cloud that an estimator was fitted to; None for plain rows."""
    form = getattr(estimator, "form_", InputForm())
    known = form.image_shape or form.input_shape
    if known is not None:
        return known
    for name in ("invariance", "functional_"):
        own = own_shape(getattr(estimator, name, None))
        if own is not None:
            return own[1]
    return None


LARGEST = 1e70
"""X and y beyond this, or all below its inverse, are refused: their squares, and products of a few of these,
would leave double precision, and what a model file may hold."""

HEAVIEST = 1e12
"""Weights above this count more copies of a row than sums over all rows can tell apart."""
VALIDATE = cast("Callable[..., Any]", validate_data)
"""scikit-learn's checker, which declares arrays as text."""
NO_TARGETS = object()
"""Stands for targets that are not asked for; scikit-learn's own word for it could be given by a user."""


def as_array(values: object) -> Any:
    """Tensors, images of PIL, and lists of them, as arrays without gradients; anything else as it is."""
    if np.ma.is_masked(values):
        raise ValueError(
            "A masked array was passed, and its masked entries would be taken for data: fill them, or drop "
            "their rows, first."
        )
    values = _images_in(values) or values
    if isinstance(values, list | tuple) and any(map(_is_converted, values)):
        return [as_array(each) for each in values]
    if not _is_converted(values):
        return values
    if not isinstance(values, torch.Tensor):
        image = cast(Any, values)
        # the numbers of a palette are names of colours, and white is 255 in all images
        mode = {"P": "RGB", "1": "L", "LA": "RGBA", "PA": "RGBA"}.get(image.mode, image.mode)
        return np.asarray(image.convert(mode))
    if values.layout != torch.strided:
        raise TypeError("A sparse tensor was passed, but dense data are required: use X.to_dense().")
    numbers = values.detach().cpu().resolve_conj()
    return (numbers.double() if numbers.dtype == torch.bfloat16 else numbers).numpy()


def _images_in(values: Any) -> list[object] | None:
    """The images of an array of objects, or of a column or a frame of one column; None for anything else."""
    column = values.iloc[:, 0] if hasattr(values, "iloc") and values.shape[1:] == (1,) else values
    if str(getattr(column, "dtype", "")) != "object" or column.ndim != 1 or len(column) == 0:
        return None
    images = list(column)
    is_image = _is_converted(images[0]) or (isinstance(images[0], np.ndarray) and images[0].ndim in (2, 3))
    return images if is_image else None


def _is_converted(values: object) -> bool:
    """Whether values are a tensor, or an image of PIL, which need not be installed."""
    return isinstance(values, torch.Tensor) or (hasattr(values, "getbands") and hasattr(values, "convert"))


def _validated(estimator: object, X: object, settings: Mapping[str, object], *y: object) -> Any:
    try:
        return VALIDATE(estimator, X, *y, dtype=np.float64, order="C", **settings)
    except ValueError as error:
        words = ("could not convert string", "Input X contains NaN", "Expected numeric")
        if not str(error).startswith(words) or np.ndim(cast(ArrayLike, X)) != 2:
            raise
        columns = _columns(X) if hasattr(X, "columns") else enumerate(np.asarray(X, dtype=object).T)
        raise explained(columns, error) from error


def check_data(estimator: object, X: object, y: object = NO_TARGETS, **settings: bool | int) -> Any:
    """X, or (X, y), validated by scikit-learn, as doubles whose squares are neither 0 nor infinite.

    Tensors lose their gradients; dates and numbers that cannot be squared are refused. y is checked for its
    size where it is to be numbers. Rows that run backwards in memory, which tensors cannot, are copied.
    """
    X = as_array(X)
    refuse_dates(X, "X")
    if y is NO_TARGETS:
        x = _validated(estimator, X, settings)
        _check_size(x, "X", smallest=False)
        return x
    x, targets = _validated(estimator, X, settings, check_targets(y))
    _check_size(x, "X")
    if settings.get("y_numeric", False):
        _check_size(np.asarray(targets, dtype=np.float64), "y")
    return x, targets


def check_targets(y: object) -> object:
    """Targets as an array or a list, which are neither a text nor dates."""
    if isinstance(y, str):
        raise ValueError(f"y must hold a target for every row of X, but it is the text {y!r}.")
    y = as_array(y)
    refuse_dates(y, "y")
    return y


def _check_size(values: NDArray[np.float64], name: str, smallest: bool = True) -> None:
    sizes = np.abs(values)
    place = np.unravel_index(int(sizes.argmax()), sizes.shape) if sizes.size else ()
    largest = float(values[place]) if sizes.size else 0.0
    check_largest(largest, tuple(map(int, place)), name, smallest)


def check_largest(value: float, place: tuple[int, ...], name: str, smallest: bool = True) -> None:
    """Raise a ValueError where the largest entry, at this place, is of a size that cannot be squared."""
    if abs(value) > LARGEST or (smallest and 0 < abs(value) < 1 / LARGEST):
        raise ValueError(
            f"The largest entry of {name}, at {place}, is {value:.3g}, but "
            f"entries must have sizes from {1 / LARGEST:.0e} to {LARGEST:.0e}, so that their squares fit "
            f"into double precision: use other units, or scale {name} (sklearn.preprocessing.StandardScaler)."
        )


def flatten_images(estimator: object, X: ArrayLike, reset: bool = True) -> tuple[ArrayLike, InputForm]:
    """X as a matrix, in the order it was given, and the layout of its images where it holds images.

    Images come as [n, h, w], [n, c, h, w] or [n, h, w, c], or in rows with `image_shape`; `reset=False` means
    those of the fit. Signals and clouds of points may have the dimensions that their orbit knows.
    """
    inputs: Any = as_array(X)
    dimensions = _dimensions(inputs)
    form = _form(estimator, dimensions) if reset else layout_of(estimator)
    if dimensions is not None:
        if not reset:
            _check_dimensions(estimator, dimensions, form)
        inputs = np.asarray(inputs).reshape(len(inputs), math.prod(dimensions))
    shape = form.image_shape or form.input_shape
    if reset and shape is not None and (len(shape) == 3 or is_picture(shape)):
        form = replace(form, brightness=brightness_of(np.asarray(inputs[:BRIGHT_ROWS])))
    elif form.brightness is not None:
        found = brightness_of(np.asarray(inputs[:BRIGHT_ROWS]))
        if found not in (None, form.brightness):
            kinds = {"bytes": "whole numbers up to 255", "unit": "fractions from 0 to 1"}
            raise ValueError(
                f"The pixels of X are {kinds[found]}, but those of the fit were {kinds[form.brightness]}: "
                f"{'divide' if found == 'bytes' else 'multiply'} X by 255, or by the factor that was used "
                "for the fit."
            )
    return inputs, form


def brightness_of(pixels: NDArray[Any]) -> Brightness | None:
    """What pixels are; only 0 and 1 may be either."""
    if pixels.dtype.kind not in "biuf" or not (pixels.min(initial=0) >= 0 and pixels.max(initial=0) <= 255):
        return None
    is_whole = pixels.dtype.kind != "f" or bool((pixels == np.floor(pixels)).all())
    is_large = bool(pixels.max(initial=0) > 1)
    return ("bytes" if is_large else None) if is_whole else (None if is_large else "unit")


def training_rows(
    estimator: BaseEstimator, X: ArrayLike, y: object, **settings: bool | int
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Validated rows, with channels first, and targets; it sets `n_features_in_` and `form_`."""
    flat, form = flatten_images(estimator, X)
    x, targets = check_data(estimator, flat, y, **settings)
    vars(estimator)["form_"] = form
    return form.inward(x), targets


def layout_of(estimator: object) -> InputForm:
    """The form of the inputs of a fitted estimator."""
    return getattr(estimator, "form_", InputForm())


def _dimensions(X: ArrayLike) -> tuple[int, ...] | None:
    """The shape of one input where X is an array, or a list of arrays, with dimensions."""
    if isinstance(X, list | tuple) and len(X) > 0 and np.ndim(next(iter(X))) in (2, 3):
        first, *others = dict.fromkeys(np.shape(each) for each in X)
        if others:
            raise ValueError(
                f"The inputs have several shapes, such as {first} and {others[0]}: bring all to one shape. "
                "Images of PIL have one after image.convert('RGB').resize((width, height))."
            )
        return first
    if getattr(X, "ndim", 0) > 4:
        raise ValueError(
            f"Found array with dim {np.ndim(X)}, {np.shape(X)}, but images are [n, height, width], "
            "[n, channels, height, width] or [n, height, width, channels]."
        )
    return X.shape[1:] if isinstance(X, np.ndarray) and X.ndim in (3, 4) else None


def _form(estimator: object, dimensions: tuple[int, ...] | None) -> InputForm:
    """The form of training data, after a look whether the invariance is one of such data.

    Where neither the invariance nor the kernel is one of images, signals or clouds, the order of the numbers
    in a row does not matter, and the inputs become rows as they are.
    """
    invariance: object = getattr(estimator, "invariance", None)
    announced: Sequence[int] | None = getattr(estimator, "image_shape", None)
    channels = getattr(estimator, "channels", "auto")
    check_channels(channels)
    family, own, owner = family_of(invariance), own_shape(invariance), invariance
    features: object = getattr(estimator, "features", None)
    if family is None and dimensions is not None and features is None:
        owner = getattr(estimator, "kernel", None)
        own = own_shape(owner)
    if announced is not None:
        check_family(invariance, "image")
        form = image_layout(dimensions, announced, channels)
    elif dimensions is None:
        return InputForm()
    elif own is not None and own[0] != "image":
        if dimensions != own[1]:
            raise ValueError(
                f"X has inputs of shape {dimensions}, but {named(owner)} moves {PLURALS[own[0]]} of "
                f"shape {own[1]}."
            )
        return InputForm()
    elif own is not None:
        plane = own[1][1:] if own[1][0] == 1 and len(dimensions) == 2 else own[1]
        matches = dimensions in (plane, (*plane[1:], plane[0]))
        form = image_layout(dimensions, dimensions if matches else plane, channels)
    elif (
        family is None
        and isinstance(features, nn.Module)
        and (len(dimensions) == 3 or is_picture(dimensions))
    ):
        form = image_layout(dimensions, None, channels)
    elif family == "image":
        check_picture(invariance, dimensions)
        form = image_layout(dimensions, None, channels)
    elif family is None or (family in ("signal", "cloud") and len(dimensions) == 2):
        return InputForm(input_shape=dimensions)
    else:
        raise ValueError(
            f"Found array with dim {len(dimensions) + 1} and inputs of shape {dimensions}: "
            f"{not_a_table(invariance, dimensions, type(estimator).__name__)}"
        )
    if own is not None and form.image_shape is not None and check_image_shape(form.image_shape) != own[1]:
        raise ValueError(
            f"{named(owner)} {'moves' if owner is invariance else 'takes'} images of shape {own[1]}, "
            f"channels first, but these are of shape {form.image_shape}."
        )
    if form.channels == "last" and isinstance(invariance, list | tuple):
        form.require_channels_first("Functionals at other inputs")
    return form


def _check_dimensions(estimator: object, dimensions: tuple[int, ...], form: InputForm) -> None:
    """Raise a ValueError where inputs have other dimensions than those that the estimator was fitted to."""
    known = form.given if form.given is not None else input_shape(estimator)
    if known is None:
        raise ValueError(
            f"Found array with dim {len(dimensions) + 1} and inputs of shape {dimensions}: X must be "
            "[n_samples, n_features], as in fit. Images need an invariance of images or "
            "image_shape=(height, width)."
        )
    known, ones = tuple(known), [tuple(size for size in each if size > 1) for each in (dimensions, known)]
    if not (dimensions == known or (len(dimensions) != len(known) and ones[0] == ones[1])):
        order = f", channels {form.channels}" if form.channels is not None else ""
        what = "inputs" if form.given is None else "images"
        one = " A single image is X[None]." if dimensions == known[1:] else ""
        raise ValueError(
            f"X has {what} of shape {dimensions}, but {what} of shape {known}{order} are expected.{one}"
        )


def check_sizes(x: NDArray[np.float64], y: NDArray[np.float64] | None = None) -> None:
    """Raise a ValueError where inputs, or targets that are numbers, are of a size that `fit` would refuse."""
    _check_size(x, "X")
    if y is not None:
        _check_size(y, "y")


def check_weights(sample_weight: object, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """A weight of at least 0 for every row, 1 where none were given."""
    refuse_dates(sample_weight, "sample_weight")
    weights = _check_sample_weight(as_array(sample_weight), x, dtype=np.float64, ensure_non_negative=True)
    if weights.max(initial=0.0) > HEAVIEST:
        raise ValueError(
            f"sample_weight counts copies of a row, but one weight is {weights.max():.3g}: divide all "
            f"weights by the same number, so that none is above {HEAVIEST:.0e}."
        )
    return weights


@runtime_checkable
class FittedEstimator(Protocol):
    """What new inputs are checked against."""

    form_: InputForm
    n_features_in_: int


def check_inputs(estimator: FittedEstimator, X: ArrayLike, plain: bool = True) -> torch.Tensor:
    """Validated inputs of a fitted estimator; those of other functionals may be pairs [n, 2, d]."""
    X = as_array(X)
    layout = layout_of(estimator)
    if not plain:
        layout.require_channels_first("Functionals")
    if plain or np.shape(X)[1:] == layout.given:
        flat, _ = flatten_images(estimator, X, reset=False)
        return torch.from_numpy(layout.inward(np.array(check_data(estimator, flat, reset=False))))
    return check_rows(X, estimator.n_features_in_, "X")


def check_rows(inputs: object, width: int, name: str) -> torch.Tensor:
    """Finite inputs of a functional, [n, …, d] with d the width of the training inputs."""
    x = check_numbers(inputs, name)
    if x.shape[-1] != width:
        raise ValueError(f"{name}: shape {x.shape}, but inputs of width {width} are expected.")
    return torch.from_numpy(x)


def check_numbers(values: object, name: str, ensure_2d: bool = True) -> NDArray[np.float64]:
    """A copy of finite numbers of any number of dimensions, at least two unless said otherwise."""
    values = as_array(values)
    refuse_dates(values, name)
    array: Any = check_array(
        values, dtype=cast(Any, np.float64), allow_nd=True, ensure_2d=ensure_2d, input_name=name
    )
    _check_size(array, name, smallest=False)
    return np.array(array)


LEAST = {"max_iterations": 0, "num_restarts": 0, "max_depth": 0, "num_folds": 2}
"""Whole numbers that settings may go down to, 1 for those not named."""
NONE = {"noise": "None to learn it", "max_seconds": "None for no limit"}
"""What it means to leave these settings out."""


def check_settings(estimator: object, **least: int) -> None:
    """Raise an error where a setting is not what its annotation in the constructor says.

    Kernels, words and numbers are checked; whole numbers are at least as large as `least`, or `LEAST`, says.
    """
    kernel: object = getattr(estimator, "kernel", None)
    if not (kernel is None or isinstance(kernel, Kernel)):
        raise TypeError(f"kernel must be a gpytorch.kernels.Kernel or None, not {type(kernel).__name__}.")
    if kernel is not None and len(kernel.batch_shape):
        raise ValueError(f"kernel must be one kernel, but has batch shape {tuple(kernel.batch_shape)}.")
    least = {**LEAST, **least}
    for name, hint in get_type_hints(type(estimator).__init__).items():
        wanted = _missed(name, hint, getattr(estimator, name, None), least.get(name, 1))
        if wanted:
            *others, last = wanted
            said = f"{', '.join(others)} or {last}" if others else last
            raise ValueError(f"{name} must be {said}, not {getattr(estimator, name)!r}.")


def _missed(name: str, hint: object, value: object, least: int) -> list[str]:
    """What a setting may be, in words, where the value is none of it; nothing where it is fine or open."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if parts == (bool,) or (value is None and NoneType in parts):
        return []
    wanted: list[str] = []
    for part in parts:
        if part is bool or get_origin(part) is Literal:
            words = (True, False) if part is bool else get_args(part)
            is_fine = isinstance(value, str | np.bool_ | Integral) and value in words
            wanted += map(repr, words)
        elif part is int:
            is_fine = isinstance(value, Integral) and int(value) >= least
            wanted.append(f"a whole number of at least {least}")
        elif part is float and name == "noise":
            is_fine = _is_finite(value) and value >= 0
            wanted.append("a finite variance of at least 0")
        elif part is float:
            is_fine = _is_finite(value) and value > 0
            wanted.append("positive and finite")
        else:
            is_fine = part is not NoneType
        if is_fine:
            return []
    return [*wanted, NONE.get(name, "None")] if NoneType in parts else wanted


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and math.isfinite(value)


def _check_classes(classes: NDArray[np.generic]) -> None:
    """Raise a ValueError unless these are different labels of one kind, in order."""
    require(classes.ndim == 1 and len(classes) >= 2, "classes that are no list of labels")
    labels = classes.tolist()
    kinds = str if isinstance(labels[0], str) else (bool, int, float)
    require(all(isinstance(each, kinds) for each in labels), "classes of several kinds")
    # false for NaN, and for classes that come twice
    require(all(a < b for a, b in pairwise(labels)), "classes that are not in order")


def answering(method: Callable[P, R]) -> Callable[P, R]:
    """For methods that predict: a result that is not finite is an error, never an answer."""

    @wraps(method)
    def answer(*arguments: P.args, **named: P.kwargs) -> R:
        result = method(*arguments, **named)
        for part in result if isinstance(result, tuple) else (result,):
            require_finite(part, f"The result of {method.__name__} contains {{}}")
        return result

    return answer


def require_finite(values: object, found: str) -> None:
    """Raise a ValueError with what was `found` where values are not finite."""
    array = np.asarray(values)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        wrong = array[~np.isfinite(array)].ravel()[0]
        raise ValueError(
            f"{found.format(wrong)}: the computation overflowed. Scale X and y to about 1 "
            "(sklearn.preprocessing.StandardScaler), or try another kernel or a larger noise."
        )


def refuse_dates(values: object, name: str) -> None:
    """Raise a TypeError that names the column where values are dates, times, durations or periods.

    NumPy would turn many of them into raw integers without a word.
    """
    for column, part in _columns(values):
        if (found := _dates_in(part)) is not None:
            where = "" if column is None else f" in column {column!r}"
            raise TypeError(
                f"{name} holds dates or durations ({found}{where}), but numbers are required: turn them into "
                "numbers, say decimal years. AutoGPRegressor does so itself with dates in X."
            )


def _columns(values: object) -> Iterator[tuple[object, object]]:
    """The columns of a frame, or of an array of objects, with their names; else the values as a whole."""
    if hasattr(values, "columns") and hasattr(values, "dtypes"):  # a data frame, whatever library it is of
        frame = cast(Any, values)
        if len(set(frame.columns)) == len(frame.columns):
            yield from ((column, frame[column]) for column in frame.columns)
            return
        values = np.asarray(frame, dtype=object)
    if isinstance(values, list | tuple):
        try:
            values = np.asarray(values)
        except (TypeError, ValueError):
            return  # ragged, and refused as such
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 2:
        yield from enumerate(values.T)
        return
    yield None, values


def _dates_in(values: object) -> str | None:
    """What kind of dates a column holds, by its type or by its entries; a category counts by its values."""
    dtype = getattr(values, "dtype", None)
    if (categories := getattr(dtype, "categories", None)) is not None and hasattr(categories, "dtype"):
        return _dates_in(categories)
    is_temporal = getattr(dtype, "is_temporal", bool)  # as polars says it
    is_period = getattr(getattr(dtype, "type", None), "__name__", "") == "Period"
    if getattr(dtype, "kind", "") in ("M", "m") or is_period or is_temporal():
        return str(dtype)
    if getattr(dtype, "kind", "") != "O":
        return None
    kinds = dict.fromkeys(type(entry) for entry in np.asarray(values, dtype=object).ravel())
    return next((kind.__name__ for kind in kinds if issubclass(kind, MOMENTS) or _is_period(kind)), None)


def _is_period(kind: type) -> bool:
    return kind.__name__ == "Period" and hasattr(kind, "to_timestamp")
