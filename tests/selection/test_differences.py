import math
from types import SimpleNamespace

import numpy as np
import pytest

from orbitwise.selection import Candidate
from orbitwise.selection.differences import Difference, difference_between, is_tie, verdict_of


def candidate(name="a", evidence=0.0, error=0.0, kind="exact", **more):
    return Candidate(
        name, evidence, error, evidence, kind, {}, 1.0, SimpleNamespace(num_inducing=500), **more
    )


def bound(name, evidence, half, **more):
    return candidate(name, evidence, kind="lower bound", half_bound=half, **more)


def test_differences_on_common_nodes_are_paired():
    shared = np.array([0.0, 40.0, -30.0, 5.0])
    first = candidate(evidence=999, evidences=tuple(shared + np.array([5, 6, 7, 6])), gain=12.0)
    second = candidate(evidence=0, evidences=tuple(shared), gain=10.0)
    found = difference_between(first, second)
    assert found.nats == pytest.approx(6)
    assert found.spread == pytest.approx(np.std([5, 6, 7, 6], ddof=1) / 2)
    assert found.trend == pytest.approx(2)
    assert found.error == pytest.approx(found.spread)
    assert found.doubt is None
    turned = difference_between(second, first)
    assert (turned.nats, turned.error) == pytest.approx((-found.nats, found.error))


def test_without_common_nodes_errors_add():
    found = difference_between(candidate(evidence=10, error=3.0), candidate(evidence=4, error=4.0))
    assert (found.nats, found.error) == (6, 5)
    assert found.is_tie
    assert found.doubt == "nodes"


def test_more_nodes_speak_for_the_drawn_candidate_only():
    drawn_ahead, none_ahead = Difference(3.0, 0.1, trend=8.0), Difference(3.0, 0.1, trend=-8.0)
    assert not drawn_ahead.is_tie
    assert drawn_ahead.doubt is None
    assert none_ahead.is_tie
    assert none_ahead.doubt == "nodes"
    assert Difference(30.0, 0.1, trend=-8.0).doubt is None


def test_a_tie_by_data_is_no_doubt_but_one_that_nodes_may_resolve_is():
    assert Difference(0.5, 0.1).is_tie
    assert Difference(0.5, 0.1).doubt is None
    assert Difference(0.5, 0.1, trend=2.0).doubt == "nodes"
    assert Difference(0.5, 0.6).doubt == "nodes"
    assert Difference(0.5, 0.6, kind="lower bound").doubt == "draws"
    assert is_tie(math.log(3), 0.0)
    assert not is_tie(1.2, 0.5)


@pytest.mark.parametrize(
    ("halves", "doubt"),
    [
        ((900, 890), None),  # the lead grew from 10 to 20
        ((900, 865), None),  # it shrank from 35 to 20: as much once more leaves 5
        ((900, 840), "trend"),
        ((880, 900), "order"),
    ],
)
def test_bounds_whose_order_turns_are_undecided(halves, doubt):
    found = difference_between(bound("a", 1000, halves[0]), bound("b", 980, halves[1]))
    assert found.doubt == doubt
    assert not found.is_tie


def test_bounds_that_were_and_are_equal_tie():
    found = difference_between(bound("a", 10.2, 9.0), bound("b", 10.0, 9.1))
    assert found.is_tie
    assert found.doubt is None


def test_brackets_that_overlap_are_undecided():
    first, inside, below = (
        candidate(evidence=evidence, kind="lower bound", upper=upper)
        for evidence, upper in [(100, 110), (90, 105), (60, 80)]
    )
    assert difference_between(first, inside).doubt == "brackets"
    assert difference_between(first, below).doubt is None


def test_verdicts_say_who_is_best_and_what_would_decide():
    a, b, c = bound("a", 1000, 880), bound("b", 980, 900), bound("c", 100, 90)
    others = [(each, difference_between(a, each)) for each in (b, c)]
    text = verdict_of(a, a, others, None)
    assert text.startswith("Undecided at num_inducing=500: a leads b by 20.0 nats, but with half as many")
    assert "More inducing points (num_inducing) would decide." in text
    assert "c" not in text.replace("inducing", "").replace("decide", "").split()
    assert verdict_of(a, a, others[1:], None) == "a is best, 900.0 nats ahead of c."
    assert verdict_of(a, a, [], None) == "a is the only candidate."
    none, drawn = candidate("none", 3.0), candidate("rotation", 2.5)
    tie = verdict_of(none, none, [(drawn, Difference(0.5, 0.0))], 16)
    assert tie.startswith("A tie: none and rotation differ by less than odds of 3 to 1.")
    open_ = verdict_of(drawn, none, [(none, Difference(0.5, 2.0))], 16)
    assert "Undecided on 16 nodes: rotation leads none by 0.5 ± 2.0 nats" in open_
    assert open_.endswith("none is kept, the simplest of those that tie.")


def test_a_family_behind_its_member_was_not_learned_to_the_end():
    behind = Difference(1000.0, 50.0, kind="lower bound", is_inverted=True)
    assert behind.doubt == "family"
    member, family = candidate("affine", 1000.0), candidate("affine+deformation", 0.0)
    verdict = verdict_of(member, member, [(family, behind)], None)
    assert "affine+deformation contains it, so affine+deformation was not learned to the end" in verdict
    assert "Longer learning" in verdict
    assert Difference(1.0, 50.0, kind="lower bound", is_inverted=True).doubt == "draws"


def test_a_tie_of_fits_that_did_not_converge_is_undecided():
    assert Difference(0.5, 0.0).doubt is None
    unsettled = Difference(0.5, 0.0, is_unsettled=True)
    assert unsettled.doubt == "learning"
    assert Difference(50.0, 0.0, is_unsettled=True).doubt is None
    verdict = verdict_of(candidate("a", 0.5), candidate("b"), [(candidate("b"), unsettled)], 16)
    assert "had not converged" in verdict
    assert "Only more rows" not in verdict
