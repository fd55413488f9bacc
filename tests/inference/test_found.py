"""What a search says of its answer: errors by hand, covariances of what is free."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from orbitwise.inference.optimise.orbit_search import PER_ROW, Coordinates, SearchResult, covariance_of
from orbitwise.orbits.orbit import Bounds


def found_at(point, gradient, **more) -> SearchResult:
    settled = more.pop("has_settled", True)
    found = SearchResult(np.array(point), 16, 3.0, "", [], [], settled, np.array(gradient))
    for name, value in more.items():
        setattr(found, name, value)
    return found


def test_the_error_of_the_nodes_is_their_spread_and_the_last_gain():
    found = found_at([1.0], [0.0])
    assert found.node_error == 0.0
    found.others = [2.0, 5.0]
    assert found.node_error == pytest.approx(math.sqrt((1 + 4) / 2))
    found.gain = 6.0
    assert found.node_error == pytest.approx(math.sqrt((1 + 4) / 2 + 36))


def test_converged_means_settled_and_alike_on_other_nodes():
    found = found_at([1.0], [0.0])
    assert not found.is_converged(100)
    found.others = [found.value - 100 * PER_ROW, found.value + 100 * PER_ROW]
    assert found.is_converged(101)
    assert not found.is_converged(99)
    found.has_settled = False
    assert not found.is_converged(101)


def test_covariances_are_those_of_what_is_free():
    module = nn.ModuleList([Bounds(("a",), {"a": 1.0}), nn.ParameterList([torch.zeros(2).double()])])
    coordinates = Coordinates([module])
    curvature = np.array([[2.0, 0.5, 0.3], [0.5, 3.0, 0.1], [0.3, 0.1, 1.0]])
    free = found_at([1.0, 0.0, 0.0], [0.0, 0.0, 0.0], curvature=curvature)
    np.testing.assert_allclose(covariance_of(free, coordinates), np.linalg.inv(curvature))
    held = found_at([1e-6, 0.0, 0.0], [-4.0, 0.0, 0.0], curvature=curvature)
    expected = np.zeros((3, 3))
    expected[1:, 1:] = np.linalg.inv(curvature[1:, 1:])
    np.testing.assert_allclose(covariance_of(held, coordinates), expected)
    with pytest.raises(ValueError, match="curvature is unknown"):
        covariance_of(found_at([1.0], [0.0]), coordinates)
