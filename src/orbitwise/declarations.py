"""How model files store the objects of a class, declared in the class and read by `orbitwise.storage`.

An object is stored as the arguments of its constructor. Each argument is read from the attribute of the same
name and has the annotated type; a file is refused if a value has another type or a number is out of range.
Tensors of modules are stored unchanged. A class declares `stored = Stored(...)` only for what does not follow
from this, and its subclasses inherit the declaration. Conditions that types, shapes and bounds cannot express
(a Cholesky factor that can be solved with, parts of equal widths) are checked by a method `check_parts`,
which raises a ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGEST = 1e150
"""The largest number in a model: the product of any two is finite, although that of three may not be."""
SMALLEST = 1e-150
"""The smallest divisor in a model."""
MOST_COUNTED = 2**53
"""The largest count that allocates no memory, such as that of rows seen: a float holds it exactly."""
START = 0.01
"""A learnable range is built with this value before its stored tensors are restored."""


@final
@dataclass(frozen=True)
class Field:
    """An argument of a constructor, or an attribute: its types, the types of its entries, its bounds.

    Numbers, alone or as entries, lie between `least` and `most`. A whole number without a bound `most` may
    allocate memory: it is treated as a size, and is at most as large as the file. `is_record` marks numbers
    that are shown but never computed with; they may be NaN or infinite. If `dtypes` are given, tensors have
    one of them.

    An argument is read from the attribute of the same name, or from the dotted attribute `read`, or by a
    function `read` of the object. An argument that `is_omitted` is not stored: the object is built with its
    default, or with the `fixed` value, and then takes the stored tensors.
    """

    kinds: tuple[type, ...] = ()
    each: Field | None = None
    least: float = -LARGEST
    most: float | None = None
    is_record: bool = False
    dtypes: tuple[str, ...] = ()
    read: str | Callable[..., object] = ""
    is_omitted: bool = False
    fixed: object = None


def switch(attribute: str) -> Field:
    """An argument that is only above zero or not, as the attribute says: its value is a stored tensor."""
    is_on = attrgetter(attribute)
    return Field(read=lambda value: START if is_on(value) else 0.0)


OMITTED = Field(is_omitted=True)
RECORD = Field(is_record=True)
POSITIVE = Field(least=SMALLEST)
COUNT = Field(least=0, most=MOST_COUNTED)
FLAG = Field((bool,))
TEXT = Field((str,))
NUMBER = Field((int, float), least=0)
REPORTED = Field((int, float), is_record=True)
"""A number that is shown, but never computed with."""
REPORTED_ARRAY = Field((np.ndarray,), is_record=True)


@final
@dataclass(frozen=True)
class Stored:
    """How objects of a class are stored, as far as it does not follow from the constructor.

    `arguments` are merged with the annotations of the constructor. If `build` is given, this function, or the
    class method of this name, builds the object instead of the constructor. `attributes`, with dots for those
    of parts, are set after building; files of earlier versions may lack them. `fitted` are the attributes
    that an estimator always has after `fit`, in addition to its settings, and `sometimes` those that it may
    have. Buffers named in `infinite` may have infinite entries. `cost` is the memory in bytes that building
    takes in addition to the sizes of the arguments. `refuse` returns the reason why an object cannot be
    stored, or None; `never` is the reason for the whole class.
    """

    arguments: Mapping[str, Field] = field(default_factory=dict)
    attributes: Mapping[str, Field] = field(default_factory=dict)
    fitted: Mapping[str, Field] = field(default_factory=dict)
    sometimes: Mapping[str, Field] = field(default_factory=dict)
    build: str | Callable[..., object] = ""
    infinite: tuple[str, ...] = ()
    cost: Callable[[Mapping[str, object]], int] | None = None
    refuse: Callable[..., str | None] | None = None
    never: str = ""


def require(holds: bool, what: str) -> None:
    """Raise a ValueError unless the condition holds; `what` is the fault, such as "rows of another width"."""
    if not holds:
        raise ValueError(what)


def is_plain_numbers(
    value: Tensor | NDArray[np.generic], least: float = -LARGEST, most: float = LARGEST
) -> bool:
    """Whether all entries of floating-point numbers are within bounds, which is false for NaN.

    Whole numbers and text always pass; floating-point tensors are of single or double precision.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f" or not value.size:
            return True
        return bool(least <= float(value.min())) and bool(float(value.max()) <= most)
    if not value.is_floating_point() or not value.numel():
        return True
    if value.dtype not in (torch.float32, torch.float64):
        return False
    # as Python floats, because single precision cannot represent either bound
    low, high = (end.item() for end in torch.aminmax(value.detach()))
    return least <= low and high <= most
