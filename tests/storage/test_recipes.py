"""Types of fields, tensors of modules, and a table that no class is missing from."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, final

import numpy as np
import pytest
import torch
from gpytorch.priors import GammaPrior
from jaxtyping import Float
from torch import nn

from orbitwise import functionals, orbits, transforms
from orbitwise.declarations import START, Field, Stored
from orbitwise.functionals import Evaluation, Functional, OrbitAverage
from orbitwise.functionals.functional import Atoms
from orbitwise.kernels import BasisKernel, BumpBasis, FourierBasis, PolynomialBasis
from orbitwise.orbits import ImageOrbit, Orbit, PointCloudOrbit
from orbitwise.orbits.orbit import MOST_SAMPLES
from orbitwise.storage import StorageError
from orbitwise.storage.recipes import (
    declaration_of,
    field_of,
    has_kind,
    in_range,
    is_own,
    known_classes,
    recipe_of,
)
from orbitwise.transforms import Transform
from tests.storage.round_trip import again


@pytest.mark.parametrize(
    ("value", "field", "fits"),
    [
        (1, Field((int,)), True),
        (True, Field((int,)), False),
        (True, Field((int, bool)), True),
        (1.0, Field((int,)), False),
        (None, Field((int,)), False),
        ((1, 2), Field((tuple,), each=Field((int,))), True),
        ((1, True), Field((tuple,), each=Field((int,))), False),
        ((1, "2"), Field((tuple,), each=Field((int,))), False),
        ([1, 2], Field((tuple,), each=Field((int,))), False),
    ],
)
def test_types_are_told_apart(value: object, field: Field, fits: bool):
    assert has_kind(value, field) is fits


def test_entries_of_dictionaries_and_precisions_are_told_apart():
    assert has_kind({"a": 1.0}, Field((dict,), each=Field((float,))))
    assert not has_kind({"a": None}, Field((dict,), each=Field((float,))))
    assert has_kind(torch.ones(2).double(), Field((torch.Tensor,), dtypes=("float64",)))
    assert not has_kind(torch.ones(2), Field((torch.Tensor,), dtypes=("float64",)))


@pytest.mark.parametrize(
    ("value", "field", "fits"),
    [
        (1.0, Field((float,)), True),
        (float("nan"), Field((float,)), False),
        (float("-inf"), Field((float,)), False),
        (1e160, Field((float,)), False),
        (float("nan"), Field((float,), is_record=True), True),
        (10**400, Field((int,), is_record=True), False),
        (101, Field((int,)), False),
        (-101, Field((int,)), False),
        (101, Field((int,), most=200), True),
        (0, Field((int,), least=1), False),
        ((1.0, float("inf")), Field((tuple,), each=Field((float,))), False),
        ({"a": float("nan")}, Field((dict,), each=Field((float,))), False),
        ("text", Field((str,)), True),
        (None, Field((int, type(None)), least=1), True),
        (np.array([1.0, np.nan]), Field((np.ndarray,)), False),
        (np.array([1, 2]), Field((np.ndarray,)), True),
        (torch.tensor([1.0, float("inf")]), Field((torch.Tensor,)), False),
        (torch.tensor([0.0, 1.0]), Field((torch.Tensor,), least=1e-150), False),
        (torch.zeros(0), Field((torch.Tensor,)), True),
        (torch.ones(2).half(), Field((torch.Tensor,)), False),
        (torch.ones(2).long(), Field((torch.Tensor,)), True),
    ],
)
def test_numbers_out_of_range_are_told(value: object, field: Field, fits: bool):
    assert in_range(value, field, largest=100) is fits


def test_types_follow_from_annotations():
    image, bounds = Field((tuple, list), Field((int,))), Field((int, float, type(None)))
    assert field_of(Sequence[int]) == image
    assert field_of(float | None) == bounds
    assert field_of(Literal["a", "b"]) == Field((str,))
    assert field_of(Mapping[str, float]) == Field((dict,), Field((int, float)))
    assert field_of(Functional) == Field((Functional,))
    assert field_of(Float[torch.Tensor, "n d"]).kinds == (torch.Tensor,)
    assert "float64" in field_of(Float[torch.Tensor, "n d"]).dtypes
    assert field_of(Callable[[int], int]) == Field((object,))


def test_arguments_are_attributes_or_as_declared():
    recipe = recipe_of(PointCloudOrbit)
    orbit = PointCloudOrbit(3, 2, angle=0.5)
    assert recipe is not None
    assert list(recipe.arguments) == [
        "num_points", "num_dimensions", "angle", "jitter", "num_samples", "num_groups", "draws",
    ]  # fmt: skip
    assert recipe.required == {"num_points"}
    told = {name: recipe.argument_of(orbit, name) for name in recipe.arguments}
    assert (told["num_points"], told["angle"], told["jitter"]) == (3, START, 0.0)
    assert (recipe.arguments["num_samples"].least, recipe.arguments["num_samples"].most) == (1, MOST_SAMPLES)


def test_tensors_of_own_parts_are_own_tensors():
    recipe = recipe_of(ImageOrbit)
    orbit = ImageOrbit((4, 4))
    assert recipe is not None
    assert dict(recipe.own_tensors(orbit)).keys() == orbit.state_dict().keys()
    average = recipe_of(OrbitAverage)
    assert average is not None
    assert not dict(average.own_tensors(OrbitAverage(orbit)))


@final
class Halves(Functional):
    """A functional that storage has not heard of: factor·g(x) + offset·g(0)."""

    def __init__(self, factor: float, offset: float = 0.5, shape: Sequence[int] = (1, 2)) -> None:
        super().__init__()
        self.factor, self.offset, self.shape = factor, offset, tuple(shape)
        self.weight = nn.Parameter(torch.ones(2))

    def lower(self, x: torch.Tensor, generator: torch.Generator | None = None) -> Atoms:
        return (self.factor * Evaluation()).lower(x, generator)  # pyright: ignore[reportReturnType]


def test_a_new_class_of_orbitwise_is_stored_by_its_constructor(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(StorageError, match="Halves, which cannot be stored"):
        again(Halves(2.0))
    monkeypatch.setattr(Halves, "__module__", "orbitwise.functionals.points")
    monkeypatch.setattr("orbitwise.functionals.points.Halves", Halves, raising=False)
    functional = Halves(2.0, 3.0, (4, 5))
    with torch.no_grad():
        functional.weight += 0.3
    back = again(functional)
    assert (back.factor, back.offset, back.shape) == (2.0, 3.0, (4, 5))
    assert torch.equal(back.weight, functional.weight)
    del functional.factor
    with pytest.raises(StorageError, match=r"a Halves cannot be stored, because .* 'factor'"):
        again(functional)


def test_every_public_class_is_stored():
    public = [getattr(each, name) for each in (transforms, orbits, functionals) for name in each.__all__]
    kinds = [each for each in public if inspect.isclass(each) and issubclass(each, nn.Module)]
    concrete = [each for each in kinds if not inspect.isabstract(each)]
    ours = [each for each in concrete if issubclass(each, Transform | Orbit | Functional)]
    assert len(ours) > 25
    assert all(known_classes()[each.__name__] is each for each in ours)


def test_every_class_has_a_recipe_and_a_name_of_its_own():
    classes = known_classes()
    assert {recipe_of(kind).kind for kind in classes.values()} == set(classes.values())  # pyright: ignore[reportOptionalMemberAccess]
    modules = [each for name, each in sys.modules.items() if name.partition(".")[0] == "orbitwise"]
    own = {
        kind for each in modules for kind in vars(each).values() if isinstance(kind, type) and is_own(kind)
    }
    assert sorted(kind.__name__ for kind in own) == sorted({kind.__name__ for kind in own})
    assert not {"eval", "exec", "getattr", "__import__", "type", "object"} & set(classes)


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


def test_what_bases_declare_is_inherited():
    class Base:
        stored = Stored({"a": Field(least=0)}, build="make", cost=len, refuse=repr)

    class Child(Base):
        stored = Stored({"b": Field(least=1)}, infinite=("b",))

    told = declaration_of(Child)
    assert (told.build, told.cost, told.refuse, told.infinite) == ("make", len, repr, ("b",))
    assert list(told.arguments) == ["a", "b"]
