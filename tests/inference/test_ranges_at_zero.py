"""Searches that end where a range is zero, or where slopes jump, as on the finitely many nodes of a warp."""

import math

import numpy as np
import pytest

from orbitwise.estimators.learned_ranges import searched_errors
from orbitwise.inference.optimise.orbit_search import LEAST, Coordinates, OrbitSearch, SearchResult
from orbitwise.orbits.orbit import Bounds


def bounds() -> Bounds:
    return Bounds(("angle",), {"angle": 0.5})


def test_other_nodes_with_a_slope_in_the_width_itself_move_next_to_nothing():
    module = bounds()

    def at_nodes(nodes, scramble):
        def objective():
            u = module.half_width[0] / 0.5
            # largest at zero; nodes that do not lie symmetrically add a term that is linear in the width
            return -5 * u**2 - u**4 + (-0.05 if scramble == 0 else 0.05) * u

        return objective

    found = OrbitSearch(at_nodes, Coordinates([module]), 10, 16).run()
    assert found.point[0] == pytest.approx(LEAST)
    assert found.is_converged(10)
    assert np.abs(found.shifts).max() < 0.01


def test_the_interval_of_a_range_at_zero_ends_where_the_evidence_has_fallen():
    module = bounds()
    coordinates = Coordinates([module])
    at = np.array([LEAST])
    found = SearchResult(at, 16, 0.0, "", [], [], True, np.array([-3000.0]))
    found.curvature, found.centre, found.slope = np.array([[10.0]]), np.array([0.05]), np.array([-2.0])
    found.shifts = [np.zeros(1)]
    coordinates.assign(at)
    errors, intervals = searched_errors(module.intervals, coordinates, found)
    # the model falls by 1.5 v + 5 v²
    v = {drop: (-1.5 + math.sqrt(1.5**2 + 20 * drop)) / 10 for drop in (0.5, 0.5 * 1.96**2)}
    assert errors["angle"] == pytest.approx(0.5 * v[0.5] ** 0.5, rel=1e-3)
    assert intervals["angle"][0] == 0
    assert intervals["angle"][1] == pytest.approx(0.5 * v[0.5 * 1.96**2] ** 0.5, rel=1e-3)


def test_what_is_free_follows_a_range_that_leaves_its_bound():
    module = Bounds(("angle", "shift"), {"angle": 0.5, "shift": 0.5})
    coordinates = Coordinates([module])
    at = np.array([LEAST, 1.0])
    found = SearchResult(at, 16, 0.0, "", [], [], True, np.array([-1.0, 0.0]))
    found.curvature = np.array([[10.0, 8.0], [8.0, 10.0]])
    found.centre, found.slope = at, np.zeros(2)
    found.shifts = [np.zeros(2)]
    coordinates.assign(at)
    errors, _ = searched_errors(module.intervals, coordinates, found)
    # ½ (10 - 8²/10) v² = ½
    assert errors["angle"] == pytest.approx(0.5 * (1 / 3.6) ** 0.25, rel=1e-3)
