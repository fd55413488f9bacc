"""Parts of a model that make sense alone and do not belong together are refused."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor
from orbitwise.estimators.validation import InputForm
from orbitwise.functionals import Composition, Evaluation, OrbitAverage, OrbitSum
from orbitwise.orbits import FiniteOrbit, JitterOrbit, PatchOrbit
from orbitwise.process.process import as_blocks
from orbitwise.storage.models import MOST_PAIRS, check_agreement, check_points, most_atoms
from orbitwise.transforms import coordinate_permutations

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(12, 2))
LABELS = np.array(["cat", "dog", "owl"])[np.arange(12) % 3]
QUICK: dict[str, Any] = {"max_iterations": 0, "num_inducing": 4, "random_state": 0}
REGRESSOR = InvariantGPRegressor(**QUICK).fit(X, X[:, 0])
SEVERAL = InvariantGPRegressor(inference="collapsed", **QUICK).fit(X, X)
CLASSIFIER = InvariantGPClassifier(invariance=JitterOrbit(2, 0.1), num_nodes=2, **QUICK).fit(X, LABELS)
SPARSE = SparseGPRegressor(bound="cg", tolerance=10.0, **QUICK).fit(X, X[:, 0])


@pytest.mark.parametrize("model", [REGRESSOR, SEVERAL, CLASSIFIER, SPARSE])
def test_fitted_models_agree_with_themselves(model: Any):
    state = torch.get_rng_state()
    check_agreement(model)
    assert torch.equal(torch.get_rng_state(), state)
    outputs = {REGRESSOR: 1, SEVERAL: 2, CLASSIFIER: 3, SPARSE: 1}[model]
    assert model.posterior_.num_outputs == outputs


def put(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model, name, value)


def single(model: Any) -> None:
    model.functional_.float()
    model.posterior_.process.float()


def huge(model: Any) -> None:
    model.posterior_.weights = 1e49 * torch.ones_like(model.posterior_.weights)
    model.posterior_.process.kernel.outputscale = 1e40


WRONG: list[tuple[Any, Callable[[Any], None], str]] = [
    (REGRESSOR, put("n_features_in_", 3), "width|other inputs|must have"),
    (REGRESSOR, put("form_", InputForm((3, 3))), "images of another shape"),
    (REGRESSOR, put("form_", InputForm((2,))), "images of another shape"),
    (REGRESSOR, put("feature_names_in_", np.array(["a"], dtype=object)), "names of features"),
    (REGRESSOR, put("feature_names_in_", np.array(["a", 1], dtype=object)), "no text"),
    (
        REGRESSOR,
        put("target_scale_", REGRESSOR.target_scale_._replace(scale=torch.ones(2).double())),
        "scale of other outputs",
    ),
    (REGRESSOR, put("noise_", np.ones(3)), "noise of other outputs"),
    (REGRESSOR, put("posterior_", SEVERAL.posterior_), "other outputs"),
    (REGRESSOR, put("functional_", OrbitAverage(FiniteOrbit(coordinate_permutations(3)))), "coordinates"),
    (REGRESSOR, single, "different precision"),
    (REGRESSOR, huge, "not finite"),
    (SEVERAL, put("target_scale_", SEVERAL.target_scale_._replace(is_vector=True)), "several outputs"),
    (CLASSIFIER, put("classes_", np.array(["cat", "dog"])), "other classes"),
    (CLASSIFIER, put("classes_", np.array(["dog", "cat", "owl"])), "not in order"),
    (CLASSIFIER, put("classes_", np.array([0.0, np.nan, 1.0])), "not in order"),
    (CLASSIFIER, put("classes_", np.array([["a"], ["b"], ["c"]])), "no list of labels"),
    (CLASSIFIER, put("likelihood", "stick_breaking"), "other classes"),
    (CLASSIFIER, put("likelihood", "poisson"), "likelihood must be one of"),
    (CLASSIFIER, put("inference_", "magic"), "unknown kind"),
    (CLASSIFIER, put("orbit_", JitterOrbit(3, 0.1)), "width 3"),
    (SPARSE, put("posterior_", SEVERAL.posterior_), "other outputs"),
]


@pytest.mark.parametrize(("model", "change", "message"), WRONG)
def test_parts_of_different_models_are_refused(model: Any, change: Callable[[Any], None], message: str):
    other = copy.deepcopy(model)
    change(other)
    with pytest.raises(ValueError, match=message):
        check_agreement(other)


def test_a_kernel_of_other_columns_is_refused():
    model = InvariantGPRegressor(RBFKernel(ard_num_dims=2), **QUICK).fit(X, X[:, 0])
    assert isinstance(model.functional_, Evaluation)
    model.posterior_.process.kernel.active_dims = torch.tensor([0, 5])
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        check_agreement(model)


def test_moves_that_multiply_are_refused_before_they_are_made():
    """Forty averages of two elements are 2⁴⁰ points."""
    swap = OrbitAverage(FiniteOrbit(coordinate_permutations(2)))
    functional = swap
    for _ in range(39):
        functional = Composition(swap, functional)
    assert most_atoms(functional) == 2**40
    assert most_atoms(swap + swap) == 4
    model = copy.deepcopy(REGRESSOR)
    model.functional_ = functional
    with pytest.raises(ValueError, match="far too many points"):
        check_agreement(model)


def test_a_posterior_has_more_points_in_a_file_that_holds_more():
    """Points that a file repeats, and does not hold, are not all compared with each of a new row's."""
    x = RANDOM.normal(size=(3, 16))
    patches = OrbitSum(PatchOrbit((1, 4, 4), (2, 2)))
    model = InvariantGPRegressor(invariance=patches, inference="exact", max_iterations=0).fit(x, x[:, 0])
    (rows,) = as_blocks(model.posterior_.rows)
    count = MOST_PAIRS // 9**2
    points, weights = (each[:1].expand(count + 1, *each.shape[1:]) for each in (rows.points, rows.weights))
    model.posterior_.rows = replace(rows, points=points, weights=weights)
    with pytest.raises(ValueError, match=r"9 of every new row with .* of the posterior"):
        check_agreement(model, num_numbers=0)
    check_points(model.functional_, model.posterior_, num_numbers=1)


def test_two_rows_are_not_compared_in_more_memory_than_there_is():
    """However much a file holds, all points of one row are compared with all of another's at once."""
    model = copy.deepcopy(REGRESSOR)
    (rows,) = as_blocks(model.posterior_.rows)
    count = 2**22
    model.posterior_.rows = replace(
        rows,
        points=rows.points[:1].expand(1, count, 2),
        weights=rows.weights[:1].expand(1, count),
        order=rows.order.expand(count),
        draw=rows.draw.expand(count),
    )
    functional = OrbitSum(PatchOrbit((1, 5, 5), (1, 2)))
    with pytest.raises(ValueError, match="far too many pairs of points: 20 of every new row"):
        check_points(functional, model.posterior_, num_numbers=2**40)


def test_a_group_may_be_large():
    """All orders of seven columns are 5,040 points, compared with one of the posterior's each."""
    x = RANDOM.normal(size=(4, 7))
    check_agreement(InvariantGPRegressor(invariance="permutation", max_iterations=0).fit(x, x.sum(1)))


def test_a_finite_orbit_of_other_inputs_is_refused():
    model = InvariantGPRegressor(invariance="permutation", max_iterations=0).fit(X, X.sum(1))
    check_agreement(model)
    model.orbit_ = FiniteOrbit(coordinate_permutations(3))
    with pytest.raises(ValueError, match="3 coordinates, but the inputs have 2"):
        check_agreement(model)
