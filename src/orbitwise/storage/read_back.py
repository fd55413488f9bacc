"""The check of a model that was written and read back: nothing of it may be lost."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from orbitwise.storage.container import StorageError
from orbitwise.storage.objects import Writer
from orbitwise.storage.pipelines import estimator_in, steps_of


def check_same(model: object, copy: object) -> None:
    """Raise a StorageError unless a copy holds all that an estimator, or a pipeline with one, holds."""
    _check_equal(estimator_in(model), estimator_in(copy))
    _check_same_steps(model, copy)


def _check_equal(model: object, copy: object) -> None:
    """Raise a StorageError unless the copy has every parameter and buffer of the model, bit for bit."""
    for one, other in zip(_modules(model), _modules(copy), strict=True):
        left, right = one.state_dict(), other.state_dict()
        if list(left) != list(right) or any(_bytes_of(left[name]) != _bytes_of(right[name]) for name in left):
            raise StorageError(f"a part of {type(one).__name__} would be lost.")


def _modules(model: Any) -> list[nn.Module]:
    if hasattr(model, "machine_"):
        return [model.machine_.process]
    if hasattr(model, "svc_"):
        return []
    return [model.functional_, model.posterior_.process]


def _bytes_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.cpu().numpy().tobytes()


def _check_same_steps(model: object, copy: object) -> None:
    """Raise a StorageError unless the transformers of two pipelines hold the same."""
    one, other = Writer(), Writer()
    is_same = steps_of(model, one) == steps_of(copy, other) and one.objects == other.objects
    arrays = [
        [(each.dtype, each.shape, each.tobytes()) for each in writer.arrays.values()]
        for writer in (one, other)
    ]
    if not is_same or arrays[0] != arrays[1]:
        raise StorageError("a part of the transformers before the estimator would be lost.")
