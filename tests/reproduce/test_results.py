"""Every result runs at tiny scale, judges its claims, and draws a figure that is not blank."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from rich.console import Console

from orbitwise.reproduce.result import SCALES, SOURCES, all_results
from orbitwise.reproduce.results import (
    lecture_airline,
    lecture_co2,
    lecture_ess,
    lecture_metrics,
    lecture_occam,
    lim_augmentation,
    lim_estimators,
    lim_fig1,
    lim_fig2,
    lim_fig3,
    lim_fig4,
    lim_fig5,
    rkhs_fig1,
    rkhs_fig2,
    rkhs_robustness,
    rkhs_table1,
    subsets,
    talk_bounds,
    talk_inducing,
    talk_interpolation,
    talk_joint,
    talk_nystrom,
    talk_overfitting,
    talk_scaling,
    talk_sequential,
    talk_wide,
)
from orbitwise.reproduce.runner import Run

RESULTS = all_results()
TESTED = [
    lecture_airline,
    lecture_co2,
    lecture_ess,
    lecture_metrics,
    lecture_occam,
    lim_augmentation,
    lim_estimators,
    lim_fig1,
    lim_fig2,
    lim_fig3,
    lim_fig4,
    lim_fig5,
    rkhs_fig1,
    rkhs_fig2,
    rkhs_robustness,
    rkhs_table1,
    subsets,
    talk_bounds,
    talk_inducing,
    talk_interpolation,
    talk_joint,
    talk_nystrom,
    talk_overfitting,
    talk_scaling,
    talk_sequential,
    talk_wide,
]


def test_every_result_is_listed_by_the_name_of_its_file():
    files = Path(lim_fig2.__file__).parent.glob("[a-z]*.py")
    assert sorted(RESULTS) == sorted(file.stem.replace("_", "-") for file in files)
    assert {each.RESULT for each in TESTED} == set(RESULTS.values())
    order = [SOURCES.index(name.partition("-")[0]) for name in RESULTS]
    assert order == sorted(order)


@pytest.mark.parametrize("name", RESULTS)
def test_settings_are_told_apart_by_their_cells(name, monkeypatch):
    monkeypatch.delenv("ORBITWISE_DATA", raising=False)
    result = RESULTS[name]
    for scale in SCALES:
        one, two = (result.cells(result.setting(scale, seeds)) for seeds in (1, 2))
        assert one.items() <= two.items() or set(one) <= set(two)
        for cell in two.values():
            assert json.loads(json.dumps(dict(cell.options))) == dict(cell.options)
            assert cell.seconds > 0
        if scale != "full":
            assert {"mnist", "mnist_rot_generated"}.isdisjoint(
                name for cell in two.values() for name in cell.data
            ), "a fresh clone has no such files"
    assert result.seconds("cpu") <= 300


QUICK = 3.0
"""Seconds of the results that every test run computes; others are marked slow."""
MARKED = [
    pytest.param(name, marks=[] if result.seconds("tiny") <= QUICK else [pytest.mark.slow])
    for name, result in RESULTS.items()
]


@pytest.mark.parametrize("name", MARKED)
def test_a_result_runs_at_tiny_scale(name, tmp_path, monkeypatch):
    monkeypatch.delenv("ORBITWISE_DATA", raising=False)
    result = RESULTS[name]
    run = Run(result, result.setting("tiny"), tmp_path, "cpu")
    run.compute("", Console(quiet=True))
    assert run.claims
    assert all(claim.says and claim.printed and claim.measured for claim in run.claims)
    picture = plt.imread(run.figure)
    assert min(picture.shape[:2]) > 300
    assert len(np.unique(picture[::5, ::5].reshape(-1, picture.shape[2]), axis=0)) > 10
