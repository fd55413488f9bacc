"""The abstract class, through a family that a user might write: it needs no more than `forward`."""

from typing import final

import pytest
import torch

from orbitwise.transforms import Transform
from orbitwise.transforms.transform import element_numbers
from tests.contracts.transform_contract import ContinuousContract, DiscreteContract


@final
class Bend(Transform):
    """x + α₀x² + α₁ sin(x): curved in x, so that nothing can be right by linearity alone."""

    parameter_names = ("square", "wave")

    def forward(self, x, alpha):
        return x[:, None] + alpha[..., :1] * x[:, None].square() + alpha[..., 1:] * x[:, None].sin()


@final
class Reversals(Transform):
    """x, and x read backwards."""

    parameter_names = ("element",)
    size = 2
    isometric = True
    is_group = True

    def forward(self, x, alpha):
        both = torch.stack([x, x.flip(-1)], 1)
        return both.gather(1, element_numbers(self, alpha)[..., None].expand(-1, -1, x.shape[-1]))


class TestBend(ContinuousContract):
    narrower = None

    @pytest.fixture
    def case(self):
        return Bend(), 3


class TestReversals(DiscreteContract):
    narrower = None

    @pytest.fixture
    def case(self):
        return Reversals(), 4


def test_a_transform_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Transform()


def test_the_tangent_by_hand():
    x = torch.tensor([[0.5, -2.0]], dtype=torch.float64)
    torch.testing.assert_close(Bend().tangent(x), torch.stack([x.square(), x.sin()], 1))


def test_element_numbers_are_whole():
    alpha = torch.tensor([[[0.0], [1.0]]])
    assert element_numbers(Reversals(), alpha).tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="0, …, 1"):
        element_numbers(Reversals(), alpha + 1)
