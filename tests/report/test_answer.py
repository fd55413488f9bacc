from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from orbitwise.orbits.certainty import DEGREES
from orbitwise.report.answer import candidate_of, headline, standing
from orbitwise.report.ranges import Range
from orbitwise.selection.compare import Candidate, Comparison
from orbitwise.selection.differences import Difference, difference_between
from orbitwise.storage import load, save

TURN = Range("angle", DEGREES, -0.37, 0.37, None, 0.03)


def candidate(name: str, evidence: float, error: float) -> Candidate:
    model = SimpleNamespace(log_evidence_=evidence, orbit_=None, invariance=name)
    return Candidate(name, evidence, error, evidence / 100, "exact", {}, 1.0, model)


def test_the_answer_says_what_and_how_much_better():
    best, plain = candidate("rotation", 245.0, 4.0), candidate("none", 100.0, 3.0)
    comparison = Comparison((best, plain))
    answer = headline(best.estimator, [TURN], comparison)
    assert answer == "Rotation up to ±21.2° (± 1.7°); better than no invariance by 145.0 ± 5.0 nats."


def test_differences_on_common_nodes_are_told_not_those_of_the_values():
    best, plain = candidate("rotation", 245.0, 40.0), candidate("none", 100.0, 0.0)
    best, plain = replace(best, evidences=(150.0, 152.0)), replace(plain, evidences=(100.0, 100.0))
    answer = headline(best.estimator, [TURN], Comparison((best, plain), 16))
    assert answer.endswith("better than no invariance by 51.0 ± 1.0 nats.")


def test_a_tie_is_called_a_tie():
    best, plain = candidate("rotation", 108.0, 4.0), candidate("none", 100.0, 3.0)
    answer = headline(best.estimator, [TURN], Comparison((best, plain)))
    assert answer.endswith("a tie with no invariance (8.0 ± 5.0 nats apart).")
    rival = candidate("affine", 100.0, 3.0)
    (sentence,) = standing(best.estimator, Comparison((best, rival)))
    assert sentence == "A tie with affine: 8.0 ± 5.0 nats apart, within two standard errors."


def test_a_range_that_collapsed_and_a_lead_of_nothing_are_said_to_be_nothing():
    turned, plain = candidate("rotation", 100.0 + 1.5e-5, 0.0), candidate("none", 100.0, 0.0)
    nothing = Range("angle", DEGREES, -1.8e-7, 1.8e-7, None, 0.4)
    answer = headline(turned.estimator, [nothing], Comparison((turned, plain)))
    assert answer == "Rotation not needed; a tie with no invariance (less than 0.1 nats apart)."
    assert nothing.text() == "not needed"
    rival = candidate("affine", 100.5, 0.0)
    (sentence,) = standing(turned.estimator, Comparison((turned, rival)))
    assert sentence == "A tie with affine: 0.5 nats apart, odds below 3 to 1."


def test_a_model_that_is_not_the_best_says_so():
    best, other = candidate("rotation", 150.0, 0.0), candidate("affine", 100.0, 3.0)
    assert standing(other.estimator, Comparison((best, other))) == [
        "Less evidence than rotation, by 50.0 ± 3.0 nats."
    ]
    plain = candidate("none", 120.0, 0.0)
    comparison = Comparison((best, plain, other))
    assert "worse than no invariance by 20.0 ± 3.0 nats" in headline(other.estimator, [TURN], comparison)
    assert standing(best.estimator, comparison) == ["Better than affine by 50.0 ± 3.0 nats."]


def test_no_invariance_is_compared_with_its_rival(symmetric):
    plain, rival = candidate("none", 150.0, 0.0), candidate("sign", 100.0, 0.0)
    plain.estimator.functional_ = torch.nn.Module()
    answer = headline(plain.estimator, [], Comparison((plain, rival)))
    assert answer == "No invariance; better than sign by 50.0 nats."
    assert headline(symmetric.model, [], None) == (
        "Indifferent to the order of the columns (2 elements, exactly)."
    )


def test_errors_of_differences_add_in_squares():
    assert difference_between(candidate("a", 5.0, 3.0), candidate("b", 1.0, 4.0)) == Difference(4.0, 5.0)
    assert Difference(10.0, 5.0).is_tie
    assert not Difference(-10.1, 5.0).is_tie
    assert Difference(0.0, 0.0).is_tie
    assert Difference(1.0, 0.0).is_tie
    assert not Difference(1.2, 0.0).is_tie


def test_a_loaded_model_is_found_among_the_candidates(compared, tmp_path):
    best = compared.best
    save(best.estimator, tmp_path / "model.orbitwise")
    assert candidate_of(load(tmp_path / "model.orbitwise"), compared) is best
    others = tuple(replace(each, log_evidence=each.log_evidence + 1) for each in compared.candidates)
    assert candidate_of(load(tmp_path / "model.orbitwise"), Comparison(others)) is None
    assert standing(load(tmp_path / "model.orbitwise"), Comparison(others)) == []


@pytest.mark.parametrize("nats", [3.0, -3.0])
def test_the_text_of_a_lead_has_no_sign(nats):
    assert Difference(nats, 1.0).text() == "3.0 ± 1.0 nats"
