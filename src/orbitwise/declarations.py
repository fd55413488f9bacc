"""What files of models hold of a class, declared where the class is and read by `orbitwise.storage`.

Objects are stored by their constructor: an argument is the attribute of the same name, its type is that of
the annotation, and a file is refused where a value has another type or a number lies out of range. Tensors of
modules are stored as they are. A class says with `stored = Stored(...)` only what does not follow from this;
subclasses inherit what it says. What types, shapes and bounds cannot say (a Cholesky factor that can be
solved with, parts of equal widths) is checked by a method `check_parts`, which raises a ValueError.
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
"""Numbers of a model are no greater, so that the product of any two is finite; that of three may not be."""
SMALLEST = 1e-150
"""Numbers that are divided by are no smaller."""
MOST_COUNTED = 2**53
"""Counts that allocate nothing, such as those of rows that were seen, may be as large as a float can tell."""
START = 0.01
"""What a learnable range is made with, before it takes the tensors that it had."""


@final
@dataclass(frozen=True)
class Field:
    """An argument of a constructor, or an attribute: its types, the types of its entries, its bounds.

    Numbers, alone or as entries, lie between `least` and `most`. A whole number without a bound `most` of its
    own may allocate memory, so it is counted as a size and is at most as large as the file. `is_record` marks
    numbers that are told and never computed with, which may be NaN or infinite. Tensors have one of `dtypes`,
    where any are named.

    `read` is the attribute, dotted, that tells an argument of another name, or a function of the object that
    does. An argument that `is_omitted` takes its default, or the `fixed` value, because tensors of the object
    tell what it made.
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
    """An argument that starts something if an attribute says that it is on; tensors say how far it went."""
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
"""A number that is told, and never computed with."""
REPORTED_ARRAY = Field((np.ndarray,), is_record=True)


@final
@dataclass(frozen=True)
class Stored:
    """How objects of a class are stored, where its constructor does not say it.

    `arguments` are merged with the annotations of the constructor, or of what builds the object instead: the
    function `build`, or the class method of this name. `attributes`, also dotted ones of parts, are set after
    building; files of earlier versions may lack them. `fitted` are the attributes that an estimator has after
    `fit`, beside its settings, and `sometimes` those that it may have. Buffers named in `infinite` may have
    infinite entries. `cost` is the memory in bytes that building takes beyond the sizes of its arguments.
    `refuse` says why an object cannot be stored, and `never` says it of the whole class.
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
    """Raise a ValueError that says what an object has, where that makes no sense."""
    if not holds:
        raise ValueError(what)


def is_plain_numbers(
    value: Tensor | NDArray[np.generic], least: float = -LARGEST, most: float = LARGEST
) -> bool:
    """Whether all entries of floating-point numbers lie within bounds, which NaN never does.

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
    # as floats of Python, because single precision knows neither bound
    low, high = (end.item() for end in torch.aminmax(value.detach()))
    return least <= low and high <= most
