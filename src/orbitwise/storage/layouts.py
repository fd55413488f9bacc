"""Tensors as arrays and back, with their layout in memory.

Products and solves round differently for rows and for columns, and covariances take a shorter way where all
rows share their weights in memory. So the order of the dimensions in memory, and which of them are shared
(stride 0), are stored beside the numbers: predictions are then equal bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orbitwise.storage.container import StorageError, brief, is_counts

TENSOR_DTYPES = {
    torch.bool, torch.float16, torch.float32, torch.float64,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
}  # fmt: skip


WIDEST_SHARED = 4096
"""Rows may share their numbers in any number, but a row of one number repeated is no wider than this."""


def layout_of(tensor: Tensor) -> tuple[NDArray[Any], dict[str, Any]]:
    """The numbers of a tensor in the order they have in memory, each once, and what restores its layout."""
    if tensor.dtype not in TENSOR_DTYPES or tensor.layout != torch.strided:
        raise StorageError(f"A tensor of {tensor.dtype} cannot be stored; convert it to float64.")
    tensor = tensor.detach()
    shared = [place for place, stride in enumerate(tensor.stride()) if stride == 0]
    order = sorted(range(tensor.dim()), key=lambda place: -tensor.stride(place))
    once = tensor[tuple(slice(0, 1) if place in shared else slice(None) for place in range(tensor.dim()))]
    layout: dict[str, Any] = {"shape": list(tensor.shape), "order": order, "shared": shared}
    if tensor.device.type != "cpu":
        layout["on_device"] = True
    return np.array(once.permute(order).cpu().numpy(), order="C"), layout


def tensor_of(array: NDArray[Any], layout: Any, largest: int, device: torch.device) -> Tensor:
    """The tensor of an array and its layout, of at most `largest` entries, or a StorageError."""
    shape, order, shared = (layout.get(name) for name in ("shape", "order", "shared"))
    dims = range(len(shape)) if is_counts(shape) else None
    is_right = (
        dims is not None
        and is_counts(order)
        and sorted(order) == list(dims)
        and is_counts(shared)
        and set(shared) <= set(dims)
        and math.prod(shape) <= largest
        and (not shared or len(shape) - 1 not in shared or shape[-1] <= WIDEST_SHARED)
        and array.shape == tuple(1 if place in shared else shape[place] for place in order)
    )
    if not is_right:
        raise StorageError(f"A tensor of shape {brief(shape)} does not fit its {array.shape} numbers.")
    # A copy of its own, aligned in memory as any other tensor is.
    tensor = torch.tensor(array).permute([order.index(place) for place in range(len(shape))])
    if layout.get("on_device") is True:
        tensor = tensor.to(device)
    sizes = [max(2, size) if place in shared else size for place, size in enumerate(shape)]
    # A shared dimension of one entry, too, keeps its stride of 0.
    return tensor.expand(sizes)[tuple(slice(0, size) for size in shape)]
