"""Tensors come back with their numbers and their layout in memory."""

import pytest
import torch
from torch import Tensor

from orbitwise.storage import StorageError
from orbitwise.storage.container import layout_of, tensor_of

CPU = torch.device("cpu")
WHOLE = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)
TENSORS = [
    WHOLE,
    WHOLE.mT,
    WHOLE.permute(2, 0, 1),
    WHOLE[:, :1],
    WHOLE[0, 0].expand(5, 4),
    WHOLE[0, 0].expand(5, 4)[:1],
    WHOLE[:1].expand(3, 3, 4).mT,
    torch.tensor(3.5),
    torch.tensor([True, False]),
    torch.zeros(0, 3, dtype=torch.int8),
    torch.tensor([float("nan"), -0.0, float("inf")], dtype=torch.float32),
    torch.nn.Parameter(torch.ones(2)),
]


def again(tensor: Tensor) -> Tensor:
    array, layout = layout_of(tensor)
    return tensor_of(array, layout, 10**6, CPU)


@pytest.mark.parametrize("tensor", TENSORS)
def test_numbers_and_layout_come_back(tensor: Tensor):
    back = again(tensor)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert back.detach().numpy().tobytes() == tensor.detach().numpy().tobytes()
    strides = [(a == 0, b == 0) for a, b in zip(tensor.stride(), back.stride(), strict=True)]
    assert not tensor.numel() or all(one == other for one, other in strides)
    assert not back.requires_grad


def test_a_factor_keeps_its_columns():
    matrix = torch.linalg.cholesky(torch.eye(3, dtype=torch.float64) + 1)
    assert matrix.stride() == again(matrix).stride() == (1, 3)


def test_what_rows_share_is_stored_once():
    array, _ = layout_of(torch.ones(7).expand(1000, 7))
    assert array.size == 7


def test_unknown_types_are_refused():
    with pytest.raises(StorageError, match="complex128"):
        layout_of(torch.ones(2, dtype=torch.complex128))


ARRAY, LAYOUT = layout_of(WHOLE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": [2, 3]},
        {"shape": [2, 3, -4]},
        {"shape": [2, 3, 5]},
        {"shape": None},
        {"shape": [2, 3, 4.0]},
        {"order": [0, 1, 1]},
        {"order": [0, 1]},
        {"order": "012"},
        {"shared": [0]},
        {"shared": [7]},
        {"shape": [10**9, 3, 4], "shared": [0]},
    ],
)
def test_layouts_that_do_not_fit_are_refused(wrong: dict):
    array = ARRAY[:1] if "shared" in wrong and "shape" in wrong else ARRAY
    with pytest.raises(StorageError, match="does not fit"):
        tensor_of(array, {**LAYOUT, **wrong}, 10**6, CPU)
