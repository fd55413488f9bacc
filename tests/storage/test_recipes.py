"""Types of fields, tensors of modules, and a table that no class is missing from."""

import inspect

import numpy as np
import pytest
import torch
from gpytorch.priors import GammaPrior
from torch import nn

from orbitwise import functionals, orbits, transforms
from orbitwise.functionals import Functional
from orbitwise.kernels import BasisKernel, BumpBasis, FourierBasis, PolynomialBasis
from orbitwise.orbits import ImageOrbit, Orbit
from orbitwise.storage import StorageError
from orbitwise.storage.estimators import TABLE
from orbitwise.storage.recipes import Field, has_kind, in_range, own_tensors, read_field
from orbitwise.transforms import Transform
from tests.storage.round_trip import again


@pytest.mark.parametrize(
    ("value", "field", "fits"),
    [
        (1, Field(int), True),
        (True, Field(int), False),
        (True, Field((int, bool)), True),
        (1.0, Field(int), False),
        (None, Field(int), False),
        ((1, 2), Field(tuple, each=int), True),
        ((1, True), Field(tuple, each=int), False),
        ((1, "2"), Field(tuple, each=int), False),
        ([1, 2], Field(tuple, each=int), False),
        (-3, Field(int, is_size=True), False),
        ((3, -3), Field(tuple, each=int, is_size=True), False),
        ((3, 3), Field(tuple, each=int, is_size=True), True),
    ],
)
def test_types_are_told_apart(value: object, field: Field, fits: bool):
    assert has_kind(value, field) is fits


def test_entries_of_dictionaries_and_precisions_are_told_apart():
    assert has_kind({"a": 1.0}, Field(dict, each=float))
    assert not has_kind({"a": None}, Field(dict, each=float))
    assert has_kind(torch.ones(2).double(), Field(torch.Tensor, dtype=torch.float64))
    assert not has_kind(torch.ones(2), Field(torch.Tensor, dtype=torch.float64))


@pytest.mark.parametrize(
    ("value", "field", "fits"),
    [
        (1.0, Field(float), True),
        (float("nan"), Field(float), False),
        (float("-inf"), Field(float), False),
        (1e160, Field(float), False),
        (float("nan"), Field(float, is_record=True), True),
        (10**400, Field(int, is_record=True), False),
        (101, Field(int), False),
        (-101, Field(int), False),
        (101, Field(int, most=200), True),
        (0, Field(int, least=1), False),
        ((1.0, float("inf")), Field(tuple, each=float), False),
        ({"a": float("nan")}, Field(dict, each=float), False),
        ("text", Field(str), True),
        (None, Field((int, type(None)), least=1), True),
        (np.array([1.0, np.nan]), Field(np.ndarray), False),
        (np.array([1, 2]), Field(np.ndarray), True),
        (torch.tensor([1.0, float("inf")]), Field(torch.Tensor), False),
        (torch.tensor([0.0, 1.0]), Field(torch.Tensor, least=1e-150), False),
        (torch.zeros(0), Field(torch.Tensor), True),
        (torch.ones(2).half(), Field(torch.Tensor), False),
        (torch.ones(2).long(), Field(torch.Tensor), True),
    ],
)
def test_numbers_out_of_range_are_told(value: object, field: Field, fits: bool):
    assert in_range(value, field, largest=100) is fits


def test_fields_are_read_from_attributes_or_as_told():
    assert read_field(np.zeros((2, 3)), "shape", Field(tuple)) == (2, 3)
    assert read_field(np.zeros((2, 3)), "rows", Field(int, lambda array: len(array))) == 2


def test_tensors_of_inner_parts_are_own_tensors():
    recipe = TABLE["ImageOrbit"]
    orbit = ImageOrbit((4, 4))
    assert dict(own_tensors(recipe, orbit)).keys() == orbit.state_dict().keys()
    assert not dict(own_tensors(TABLE["Symmetry"], object()))


def test_every_public_class_has_a_recipe():
    public = [getattr(each, name) for each in (transforms, orbits, functionals) for name in each.__all__]
    kinds = [each for each in public if inspect.isclass(each) and issubclass(each, nn.Module)]
    concrete = [each for each in kinds if not inspect.isabstract(each)]
    ours = [each for each in concrete if issubclass(each, Transform | Orbit | Functional)]
    assert len(ours) > 25
    assert [each.__name__ for each in ours if TABLE.get(each.__name__) is None] == []
    assert all(TABLE[each.__name__].kind is each for each in ours)


def test_no_recipe_runs_what_a_file_names():
    assert not {"eval", "exec", "getattr", "__import__", "type", "object"} & set(TABLE)
    assert all(isinstance(recipe.kind, type) and torch.load is not recipe.build for recipe in TABLE.values())


@pytest.mark.parametrize(
    "basis", [PolynomialBasis(3), FourierBasis(2, 1.5), BumpBasis(torch.linspace(0, 1, 4)[:, None], 0.3)]
)
def test_linear_models_in_a_named_basis_come_back(basis: nn.Module):
    kernel = BasisKernel(basis, "geometric", ratio_prior=GammaPrior(2.0, 3.0)).double()
    kernel.ratio, kernel.variance = 3.0, 0.7
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
    found = again(kernel)
    assert torch.equal(found(x).to_dense(), kernel(x).to_dense())
    assert [name for name, *_ in found.named_priors()] == ["ratio_prior"]


def test_a_basis_of_ones_own_is_refused():
    with pytest.raises(StorageError, match=r"a basis of your own is code .* use PolynomialBasis"):
        again(BasisKernel(torch.sin))
