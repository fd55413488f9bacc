from dataclasses import replace

import numpy as np
import pytest

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor, load, save
from orbitwise.report import record_ranges
from orbitwise.report.exploration import explore
from orbitwise.report.numbers import number
from orbitwise.report.predictions import judge
from orbitwise.report.ranges import learned_ranges, orbit_of
from orbitwise.report.sections import (
    changes_section,
    comparison_section,
    fingerprint,
    learning_section,
    ranges_section,
    reproduction_section,
)
from orbitwise.selection import Comparison

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_ranges_have_an_error_or_say_why_there_is_none(turned, tmp_path):
    (turn,) = learned_ranges(turned.model)
    sure = ranges_section(turned.model, [replace(turn, error=0.01, interval=(turn.high, 2 * turn.high))])
    assert "± 0.6°" in sure.replace("\u00a0", " ")
    save(turned.model, tmp_path / "model.orbitwise")
    model = load(tmp_path / "model.orbitwise")
    del model._orbit_errors
    unsure = ranges_section(model, learned_ranges(model))
    assert "error bar not computed" in unsure
    assert "need the training data" in unsure


def test_the_comparison_calls_ties_ties(compared):
    best, other = compared.candidates
    alone = replace(best, standard_error=1.0, evidences=())
    near = Comparison((alone, replace(alone, name="near")))
    assert "0.0 ± 1.4 <b>(tie)</b>" in comparison_section(None_model(), near, [None, None], "").replace(
        "\u00a0", " "
    )
    values = {"log_evidence": best.log_evidence - 100, "evidences": (), "standard_error": 3.0}
    far = replace(other, **values, name="<far>")
    section = comparison_section(best.estimator, Comparison((best, far)), [None, None], "test error")
    assert "(tie)" not in section
    assert "&lt;far&gt;" in section
    assert "this report" in section
    assert "test error" not in section


class None_model:
    """A model that is none of the candidates."""

    log_evidence_ = None


def test_the_comparison_shows_test_errors_where_there_is_a_test_set(compared, turned):
    tested = [
        judge(each.estimator, turned.x, turned.y, turned.x_test, turned.y_test)
        for each in compared.candidates
    ]
    section = comparison_section(compared.best.estimator, compared, tested, "test error")
    assert section.count('data-label="test error"') == 2
    assert "\u00a0%</span>" in section


def test_an_upper_bound_of_the_evidence_is_shown(symmetric):
    model = SparseGPRegressor(num_inducing=20, max_iterations=2, random_state=0)
    comparison = Comparison((replace_candidate(model.fit(symmetric.x, symmetric.y)),))
    assert "at most" in comparison_section(model, comparison, [None], "")
    assert "Certificate" in learning_section(model, [])


def replace_candidate(model):
    from orbitwise.selection.compare import Candidate

    return Candidate("none", model.log_evidence_, 0.0, 0.0, model.evidence_kind_, {}, 1.0, model)


def test_f_is_drawn_along_each_move(bent):
    judged = judge(bent.model, bent.x, bent.y, None, None)
    exploration = explore(bent.model, orbit_of(bent.model), bent.x, judged, np.array([0, 1]))
    assert len(exploration.tracks) == 7
    section = changes_section(exploration.tracks[-2:], "", is_labelled=True)
    assert section.count("<img") == 2
    assert "deformation" in section
    assert "posterior standard deviation" in section


def test_a_search_is_told_by_its_stages(turned, bent):
    section = learning_section(turned.model, learned_ranges(turned.model))
    assert turned.model.stopped_by_ in section
    assert section.count("<img") == 2
    assert section.count("<tr>") == 1 + len(turned.model.search_)
    best = max(turned.model.search_[-1]["values"])
    assert number(best, 1) in section
    plain = learning_section(bent.model, learned_ranges(bent.model))
    assert "start and end" in plain
    assert "before it converged" in plain


def test_other_learning_is_drawn_over_time(symmetric, turned):
    assert learning_section(symmetric.model, []).count("<img") == 1
    model = InvariantGPClassifier(
        invariance="rotation",
        image_shape=(8, 8),
        inference="collapsed",
        num_nodes=2,
        num_inducing=8,
        max_iterations=3,
    )
    record_ranges(model)
    section = learning_section(model.fit(turned.x, turned.y), [])
    assert "after every iteration" in section
    assert "nodes double" not in section


def test_nothing_learned_leaves_nothing_to_draw(symmetric):
    model = InvariantGPRegressor(max_iterations=0).fit(symmetric.x, symmetric.y)
    assert learning_section(model, []) == ""


def test_the_way_to_repeat_it_is_there_and_escaped(symmetric):
    section = reproduction_section(symmetric.model, symmetric.x, symmetric.y, "fit <data> && report", 3)
    assert "<pre>fit &lt;data&gt; &amp;&amp; report</pre>" in section
    assert "InvariantGPRegressor(invariance=&#x27;permutation&#x27;, random_state=0).fit(X, y)" in section
    assert fingerprint(symmetric.x) in section
    assert "seed 3" in section
    for name in ("orbitwise", "python", "torch", "numpy"):
        assert f"{name} " in section


def test_fingerprints_tell_data_apart():
    x = np.arange(4.0)
    assert fingerprint(x) == fingerprint(x.copy())
    assert fingerprint(x) != fingerprint(x + 1)
    assert len(fingerprint(np.array(["a", None], dtype=object))) == 16
