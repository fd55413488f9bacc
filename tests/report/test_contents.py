"""The parts of the page: what they are filled with, and what their templates make of it."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor, load, save
from orbitwise.orbits.certainty import DEGREES
from orbitwise.report import record_ranges
from orbitwise.report.contents import (
    Compared,
    compared,
    fingerprint,
    judgement_figures,
    learning_of,
    own_candidate,
    reproduction_of,
)
from orbitwise.report.exploration import explore
from orbitwise.report.figures import change_figure
from orbitwise.report.numbers import number
from orbitwise.report.page import page_of, rendered
from orbitwise.report.predictions import judge
from orbitwise.report.ranges import Range, learned_ranges, orbit_of, range_errors
from orbitwise.selection.compare import Candidate, Comparison, candidate_of
from orbitwise.selection.differences import Difference, difference_between
from tests.report.test_predictions import JUDGED, labelled, measured

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

TURN = Range("angle", DEGREES, -0.37, 0.37, None, 0.03)


def candidate(name: str, evidence: float, error: float = 0.0) -> Candidate:
    """A candidate of this evidence, with a model that knows no more of itself than the answer reads."""
    model = InvariantGPRegressor(invariance=name)
    model.log_evidence_, model.log_evidence_error_, model.evidence_kind_ = evidence, error, "exact"
    model.orbit_, model.functional_, model.converged_ = None, torch.nn.Module(), True
    return Candidate(name, evidence, error, evidence / 100, "exact", {}, 1.0, model)


def words(page, template: str) -> str:
    """The text of one part of a page, without its elements and with plain spaces."""
    plain = html.unescape(re.sub(r"<[^>]*>", "", rendered(page, template)))
    return re.sub(r"\s+", " ", plain).strip()


@pytest.fixture
def told(turned_page):
    """The text of the answer about a candidate."""

    def tell(own: Candidate, ranges: list[Range], comparison: Comparison) -> str:
        among = Compared(comparison, own_candidate(own.estimator, comparison))
        page = replace(turned_page, model=own.estimator, ranges=ranges, compared=among)
        return words(page, "answer.html")

    return tell


def test_the_answer_says_what_and_how_much_better(told):
    best, plain = candidate("rotation", 245.0, 4.0), candidate("none", 100.0, 3.0)
    answer = told(best, [TURN], Comparison((best, plain)))
    assert answer.startswith(
        "Rotation up to ±21.2° (± 1.7°); better than no invariance by 145.0 ± 5.0 nats. "
    )
    for word in ("orbit", "evidence", "nats"):
        assert f"The {word}" in answer or f"in {word}:" in answer


def test_differences_on_common_nodes_are_told_not_those_of_the_values(told):
    best, plain = candidate("rotation", 245.0, 40.0), candidate("none", 100.0)
    best, plain = replace(best, evidences=(150.0, 152.0)), replace(plain, evidences=(100.0, 100.0))
    answer = told(best, [TURN], Comparison((best, plain), 16))
    assert "; better than no invariance by 51.0 ± 1.0 nats." in answer


def test_a_tie_is_called_a_tie(told):
    best, plain = candidate("rotation", 108.0, 4.0), candidate("none", 100.0, 3.0)
    answer = told(best, [TURN], Comparison((best, plain)))
    assert "; a tie with no invariance (8.0 ± 5.0 nats apart)." in answer
    answer = told(best, [TURN], Comparison((best, candidate("affine", 100.0, 3.0))))
    assert "A tie with affine: 8.0 ± 5.0 nats apart, within two standard errors." in answer


def test_a_range_that_collapsed_and_a_lead_of_nothing_are_said_to_be_nothing(told):
    turned, plain = candidate("rotation", 100.0 + 1.5e-5), candidate("none", 100.0)
    nothing = Range("angle", DEGREES, -1.8e-7, 1.8e-7, None, 0.4)
    answer = told(turned, [nothing], Comparison((turned, plain)))
    assert answer.startswith("Rotation not needed; a tie with no invariance (less than 0.1 nats apart).")
    assert nothing.text() == "not needed"
    answer = told(turned, [nothing], Comparison((turned, candidate("affine", 100.5))))
    assert "A tie with affine: 0.5 nats apart, odds below 3 to 1." in answer


def test_a_model_that_is_not_the_best_says_so(told):
    best, other, plain = (
        candidate("rotation", 150.0),
        candidate("affine", 100.0, 3.0),
        candidate("none", 120.0),
    )
    assert "Less evidence than rotation, by 50.0 ± 3.0 nats." in told(other, [], Comparison((best, other)))
    comparison = Comparison((best, plain, other))
    assert "worse than no invariance by 20.0 ± 3.0 nats" in told(other, [TURN], comparison)
    answer = told(best, [TURN], comparison)
    assert "Better than affine by 50.0 ± 3.0 nats." in answer
    assert "Less evidence" not in answer


def test_no_invariance_is_compared_with_its_rival(told, symmetric_page):
    plain, rival = candidate("none", 150.0), candidate("sign", 100.0)
    answer = told(plain, [], Comparison((plain, rival)))
    assert answer.startswith("No invariance; better than sign by 50.0 nats.")
    assert "orbit" not in answer
    answer = words(symmetric_page, "answer.html")
    assert answer.startswith("Indifferent to the order of the columns (2 elements, exactly). ")


def test_the_answer_says_how_good_predictions_are(turned_page, symmetric_page):
    page = replace(turned_page, judged=JUDGED)
    expected = "The model is wrong on 25.0 % (95 % interval 4.6 to 69.9 %) of 4 test examples."
    assert expected in words(page, "answer.html")
    page = replace(symmetric_page, judged=measured("leave-one-out"))
    assert "(root mean square) on 4 held-out training examples." in words(page, "answer.html")


def test_errors_of_differences_add_in_squares():
    assert difference_between(candidate("a", 5.0, 3.0), candidate("b", 1.0, 4.0)) == Difference(4.0, 5.0)
    assert Difference(10.0, 5.0).is_tie
    assert not Difference(-10.1, 5.0).is_tie
    assert Difference(0.0, 0.0).is_tie
    assert Difference(1.0, 0.0).is_tie
    assert not Difference(1.2, 0.0).is_tie


@pytest.mark.parametrize("nats", [3.0, -3.0])
def test_the_text_of_a_lead_has_no_sign(nats):
    assert Difference(nats, 1.0).text() == "3.0 ± 1.0 nats"


def test_a_loaded_model_is_found_among_the_candidates(compared, tmp_path):
    best = compared.best
    save(best.estimator, tmp_path / "model.orbitwise")
    model = load(tmp_path / "model.orbitwise")
    assert own_candidate(model, compared) is best
    others = Comparison(tuple(replace(e, log_evidence=e.log_evidence + 1) for e in compared.candidates))
    assert own_candidate(model, others) is None
    among = Compared(others, own_candidate(model, others))
    assert (among.own, among.against, among.rivals) == (None, None, [])


def test_ranges_have_an_error_or_say_why_there_is_none(turned, turned_page, tmp_path):
    (turn,) = turned_page.ranges
    sure = replace(turn, error=0.01, interval=(turn.high, 2 * turn.high))
    assert "± 0.6°" in words(replace(turned_page, ranges=[sure]), "ranges.html")
    save(turned.model, tmp_path / "model.orbitwise")
    model = load(tmp_path / "model.orbitwise")
    del model._orbit_errors
    known = range_errors(model)
    ranges = learned_ranges(model, known)
    page = replace(turned_page, ranges=ranges, no_errors=known.reason)
    assert "error bar not computed" in words(page, "ranges.html")
    assert "need the training data" in words(page, "ranges.html")


def test_the_orbit_is_shown_around_real_examples(turned_page):
    section = rendered(turned_page, "orbit.html")
    assert section.count('class="strip"') == 6
    assert section.count("<img") == 6 * 9
    painter = turned_page.exploration.painter
    assert painter.uri(turned_page.exploration.rows[0]) in html.unescape(section)
    hostile = replace(turned_page, strips=[turned_page.strips[0]._replace(name="<b>")])
    assert "<b>" not in rendered(hostile, "orbit.html")


def test_a_finite_orbit_is_shown_by_its_elements(turned):
    model = InvariantGPClassifier(
        invariance="flip+quarter_turn", image_shape=(8, 8), max_iterations=2, random_state=0
    ).fit(turned.x[:20], turned.y[:20])
    page = page_of(model, turned.x[:20], turned.y[:20])
    assert all(len(strip.moved) == 7 for strip in page.strips)
    assert "elements of its orbit" in words(page, "orbit.html")
    assert "by construction" in words(page, "explorer.html")
    assert page.changes == {}
    middle = page.exploration.tracks[0].middle
    np.testing.assert_allclose(middle, np.broadcast_to(middle[:, :1], middle.shape), atol=1e-9)


def test_the_explorer_has_a_slider_for_each_move(turned_page):
    names = ("<i>", *turned_page.exploration.names[1:])
    page = replace(turned_page, exploration=replace(turned_page.exploration, names=names))
    section = rendered(page, "explorer.html")
    assert section.count('type="range"') == 1
    assert "--low:0.2500;--high:0.7500" in section
    assert "&lt;i&gt;" in section
    assert "<noscript>" in section


def test_f_is_drawn_along_each_move(bent, turned_page):
    judged = judge(bent.model, bent.x, bent.y, None, None)
    exploration = explore(bent.model, orbit_of(bent.model), bent.x, judged, np.array([0, 1]))
    assert len(exploration.tracks) == 7
    changes = {each.move.label: change_figure(each, "") for each in exploration.tracks[-2:]}
    page = replace(turned_page, changes=changes)
    section = rendered(page, "changes.html")
    assert section.count("<img") == 2
    assert "deformation" in section
    assert "posterior standard deviation" in words(page, "changes.html")


def comparison_part(page, model, comparison, fitted=None) -> str:
    """The HTML of the comparison, tested where there are data."""
    test = (None, None) if fitted is None else (fitted.x_test, fitted.y_test)
    part = compared_of(model, comparison, page.judged, *test)
    return rendered(replace(page, compared=part), "comparison.html")


compared_of = compared  # the fixture of the same name hides it in tests


def test_the_comparison_calls_ties_ties(compared, turned_page):
    best, other = compared.candidates
    alone = replace(best, standard_error=1.0, evidences=())
    near = Comparison((alone, replace(alone, name="near")))
    stranger = candidate("stranger", 0.0).estimator
    assert "0.0 ± 1.4 <b>(tie)</b>" in comparison_part(turned_page, stranger, near)
    values = {"log_evidence": best.log_evidence - 100, "evidences": (), "standard_error": 3.0}
    far = replace(other, **values, name="<far>")
    section = comparison_part(turned_page, best.estimator, Comparison((best, far)))
    assert "(tie)" not in section
    assert "&lt;far&gt;" in section
    assert "this report" in section
    assert "test error" not in section


def test_the_comparison_shows_test_errors_where_there_is_a_test_set(compared, turned, turned_page):
    section = comparison_part(turned_page, compared.best.estimator, compared, turned)
    assert section.count('data-label="test error"') == 2
    assert " %</span>" in section


def test_an_upper_bound_of_the_evidence_is_shown(symmetric, symmetric_page):
    model = SparseGPRegressor(num_inducing=20, max_iterations=2, random_state=0)
    model.fit(symmetric.x, symmetric.y)
    comparison = Comparison((candidate_of("none", model, 1.0, len(symmetric.x)),))
    assert "at most" in comparison_part(symmetric_page, model, comparison)
    page = replace(symmetric_page, model=model, learning=learning_of(model, []))
    assert "Certificate" in rendered(page, "learning.html")


def test_the_judgement_says_what_was_judged(symmetric_page):
    judged = measured("leave-one-out")
    page = replace(symmetric_page, judged=judged, figures=judgement_figures(judged, 0))
    assert "each predicted from all the others" in words(page, "judgement.html")


def judgement_part(page, judged) -> str:
    """The HTML of the judgement of these predictions."""
    return rendered(replace(page, judged=judged, figures=judgement_figures(judged, 0)), "judgement.html")


def test_classes_have_a_confusion_matrix_and_a_reliability_diagram(turned_page):
    section = judgement_part(turned_page, JUDGED)
    assert section.count("<img") == 2
    assert "log loss" in section
    many = labelled(np.eye(61), np.arange(61), [str(i) for i in range(61)])
    section = judgement_part(turned_page, many)
    assert "Confusion matrix" not in section


def test_outputs_have_three_figures_each_up_to_a_limit(symmetric_page, monkeypatch):
    monkeypatch.setattr("orbitwise.report.contents.MOST_OUTPUTS", 1)
    judged = measured(outputs=2)
    page = replace(symmetric_page, judged=judged, figures=judgement_figures(judged, 0))
    assert rendered(page, "judgement.html").count("<img") == 3
    assert "first 1 of 2 outputs" in words(page, "judgement.html")
    assert "output 1: in the 95 % interval" in words(page, "judgement.html")


def test_the_worst_and_the_most_uncertain_images_are_shown(turned, turned_page):
    judged = turned_page.judged
    section = rendered(turned_page, "extremes.html")
    rows = [int(row) - 1 for row in re.findall(r">row (\d+)<", section)]  # they count from 1
    assert len(rows) == 12
    assert rows[0] == judged.confidence.argmin()
    assert rows[6] == judged.losses.argmax()
    painter = turned_page.exploration.painter
    first = turned_page.extremes.uncertain[0]
    pixels = turned.x_test[rows[0]].reshape(-1)
    assert replace(painter, low=0.0, high=16.0).uri(pixels) == first.picture


def test_rows_of_a_table_are_shown_with_their_columns(symmetric_page):
    (output,) = symmetric_page.judged.outputs
    section = rendered(symmetric_page, "extremes.html")
    rows = [int(row) - 1 for row in re.findall(r'scope="row" class="number">(\d+)<', section)]
    assert rows[0] == output.deviation.argmax()
    assert rows[6] == abs(output.scores).argmax()
    assert "x<sub>1</sub>" in section
    assert 'data-label="x1"' in section
    assert section.count("±") == 12


def test_a_search_is_told_by_its_stages(turned, turned_page, bent):
    section = rendered(turned_page, "learning.html")
    assert turned.model.stopped_by_ in section
    assert section.count("<img") == 2
    assert section.count("<tr>") == 1 + len(turned.model.search_)
    assert number(max(turned.model.search_[-1]["values"]), 1) in section
    learning = learning_of(bent.model, learned_ranges(bent.model))
    page = replace(turned_page, model=bent.model, learning=learning)
    assert "start and end" in words(page, "learning.html")
    assert "before it converged" in words(page, "learning.html")


def test_other_learning_is_drawn_over_time(symmetric, turned, turned_page):
    page = replace(turned_page, model=symmetric.model, learning=learning_of(symmetric.model, []))
    assert rendered(page, "learning.html").count("<img") == 1
    model = InvariantGPClassifier(
        invariance="rotation",
        image_shape=(8, 8),
        inference="collapsed",
        num_nodes=2,
        num_inducing=8,
        max_iterations=3,
    )
    record_ranges(model)
    model.fit(turned.x, turned.y)
    page = replace(turned_page, model=model, learning=learning_of(model, []))
    assert "after every iteration" in words(page, "learning.html")
    assert "nodes double" not in words(page, "learning.html")


def test_nothing_learned_leaves_nothing_to_draw(symmetric, symmetric_page):
    model = InvariantGPRegressor(max_iterations=0).fit(symmetric.x, symmetric.y)
    page = replace(symmetric_page, model=model, learning=learning_of(model, []))
    assert rendered(page, "learning.html").strip() == ""


def test_the_way_to_repeat_it_is_there_and_escaped(symmetric, symmetric_page):
    part = reproduction_of(symmetric.model, symmetric.x, symmetric.y, "fit <data> && report", 3)
    section = rendered(replace(symmetric_page, reproduction=part), "reproduction.html")
    assert "<pre>fit &lt;data&gt; &amp;&amp; report</pre>" in section
    assert "InvariantGPRegressor(invariance=&#39;permutation&#39;, random_state=0).fit(X, y)" in section
    assert fingerprint(symmetric.x) in section
    assert "seed 3" in section
    for name in ("orbitwise", "python", "torch", "numpy"):
        assert f"{name} " in section


def test_fingerprints_tell_data_apart():
    x = np.arange(4.0)
    assert fingerprint(x) == fingerprint(x.copy())
    assert fingerprint(x) != fingerprint(x + 1)
    assert len(fingerprint(np.array(["a", None], dtype=object))) == 16


def test_the_answer_says_which_kernel_was_chosen():
    x = np.random.default_rng(0).normal(size=(30, 2))
    labels = (x[:, 0] > 0).astype(int)
    model = InvariantGPClassifier(max_iterations=20).fit(x, labels)
    assert model.kernel_choice_ in words(page_of(model, x, labels), "answer.html")
    plain = InvariantGPClassifier(noise="evidence", kernel=model.kernel_, max_iterations=2).fit(x, labels)
    assert "chosen among" not in words(page_of(plain, x, labels), "answer.html")
