"""Claims follow the numbers of the cells: each is judged from numbers that hold it and from others."""

import itertools
import math

import numpy as np
import pytest

from orbitwise.reproduce.result import Cells, Claim, Setting
from orbitwise.reproduce.results import (
    lim_augmentation,
    lim_estimators,
    lim_fig1,
    lim_fig3,
    lim_fig4,
    lim_fig5,
    subsets,
)

SETTING = Setting("cpu", 2)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("ORBITWISE_DATA", raising=False)


def numbers_of(result, **values) -> dict[str, dict]:
    """Every cell with the same numbers, and those of cells whose names begin with a key of `special`."""
    special = values.pop("special", {})
    usual = {
        "error": 10.0,
        "log_evidence": -1000.0,
        "evidence_error": 1.0,
        "half_bound": None,
        "ranges": {},
        "num_test": 10_000,
        "confidence": 0.9,
        "log_loss": 0.3,
        "fit_seconds": 1.0,
        "num_inducing": 200,
    }
    found = {}
    for name in result.cells(SETTING):
        found[name] = usual | values
        for start, more in special.items():
            if name.startswith(start):
                found[name] |= more
    return found


def verdicts(claims: list[Claim]) -> list[str]:
    return [claim.verdict for claim in claims]


def angle(degrees: float) -> dict:
    limit = math.radians(degrees)
    return {"ranges": {"angle": [-limit, limit]}}


def figure_3() -> Cells:
    better = {"error": 5.0, "log_evidence": -500.0}
    special = {"±90°, rotation": better | angle(92), "±180°, rotation": better | angle(176)}
    return numbers_of(lim_fig3, special=special)


def test_figure_3_asks_for_the_angle_and_for_gains_beyond_errors():
    claims = lim_fig3.claims(figure_3())
    assert verdicts(claims) == ["holds"] * 3 + ["differs"] + ["holds"] * 2
    assert "92° to 92° from all 6 starts and seeds" in claims[0].measured
    for changes, expected in (
        ({"±90°, rotation from 45°": angle(75) | {"error": 5.0}}, (0, "does not hold")),
        ({"±90°, rotation from 45°": {"error": 9.9}}, (1, "does not hold")),
        ({"±180°, rotation from 45°": {"log_evidence": -1000.0}}, (5, "does not hold")),
        ({"±180°, rotation from 45°": angle(150)}, (3, "holds")),
    ):
        place, verdict = expected
        cells = {name: dict(each) for name, each in figure_3().items()}
        for name, start in itertools.product(cells, changes):
            if name.startswith(start):
                cells[name] |= changes[start]
        assert lim_fig3.claims(cells)[place].verdict == verdict


def test_figure_4_compares_models_starts_and_bounds():
    good = {
        "rotation": {"error": 9.0, "log_evidence": -900.0},
        "affine": {"error": 3.0, "log_evidence": -500.0},
        "deformation": {"error": 3.2, "log_evidence": -520.0},
    }
    assert verdicts(lim_fig4.claims(numbers_of(lim_fig4, special=good))) == ["holds"] * 4
    rotation = good | {"rotation": {"error": 4.0, "log_evidence": -600.0}}
    assert lim_fig4.claims(numbers_of(lim_fig4, special=rotation))[2].verdict == "does not hold"
    start = good | {"affine, from 1": {"error": 8.0}}
    assert lim_fig4.claims(numbers_of(lim_fig4, special=start))[1].verdict == "does not hold"
    bound = good | {"rotation": {"error": 9.0, "log_evidence": -100.0}}
    assert lim_fig4.claims(numbers_of(lim_fig4, special=bound))[3].verdict == "does not hold"


@pytest.mark.parametrize(
    ("rotation", "fixed", "verdict"),
    [(4.0, 4.1, "differs"), (6.0, 4.0, "holds"), (4.0, 6.0, "does not hold")],
)
def test_figure_5_compares_learned_and_fixed_rotation(rotation, fixed, verdict):
    special = {
        "rotation": angle(179) | {"error": rotation, "log_evidence": -500.0},
        "fixed rotation": angle(180) | {"error": fixed, "log_evidence": -490.0},
        "affine": {"error": 4.0, "log_evidence": -480.0},
    }
    claims = lim_fig5.claims(numbers_of(lim_fig5, special=special))
    assert verdicts(claims)[:2] == ["holds", verdict]


def test_figure_1_needs_ranges_and_a_higher_bound():
    ranges = {name: [-0.1, 0.2] for name in ("angle", "log_scale_x", "shear")}
    wide = {"ranges": ranges, "log_evidence": -500.0}
    assert verdicts(lim_fig1.claims(numbers_of(lim_fig1, special={"affine": wide}))) == ["holds"]
    narrow = wide | {"ranges": ranges | {"shear": [-0.001, 0.001]}}
    lower = wide | {"log_evidence": -1500.0}
    for changed in (narrow, lower):
        assert verdicts(lim_fig1.claims(numbers_of(lim_fig1, special={"affine": changed}))) == [
            "does not hold"
        ]


def test_estimators_are_compared_by_what_they_reach():
    def cells(ours: list[float], papers: list[float], pairs: float) -> Cells:
        found = {}
        for variant in lim_estimators.VARIANTS:
            bounds = {lim_estimators.OURS: ours, lim_estimators.PAPERS: papers}.get(variant, [-900.0, pairs])
            for steps, bound in zip((50, 450), bounds, strict=True):
                numbers = {"bound": bound, "error": 5.0, "training_seconds": 2.0} | angle(90)
                found[f"{variant}, {steps} steps, seed 0"] = numbers
        return found

    claims = lim_estimators.claims(cells([-800, -500], [-2000, -700], -510))
    assert verdicts(claims) == ["holds", "holds"]
    assert "natural steps reach Adam's bound in 450 steps" in claims[0].because
    assert verdicts(lim_estimators.claims(cells([-800, -500], [-2000, -400], -600))) == ["does not hold"] * 2


def test_augmentation_is_judged_by_calibration_and_by_what_its_evidence_prefers():
    def cells(over: float, prefers: float) -> Cells:
        found = {"RBF 0, seed 0": (9.0, 0.0, 0.0, 300), "invariance learned 1, seed 0": (4.0, 0.5, 0.0, 300)}
        for width, error in ((0.5, 6.0), (1.0, 4.0), (2.0, 5.0)):
            found[f"augmented {width:g}, seed 0"] = (error, over, float(width == prefers), 1500)
            found[f"invariant {width:g}, seed 0"] = (error, 0.5, float(width == 1.0), 300)
        return {
            name: {
                "error": error,
                "overconfidence": confidence,
                "log_evidence": evidence * count,
                "num_rows": count,
                "log_loss": confidence,
                "fit_seconds": 1.0,
                "num_test": 10_000,
            }
            for name, (error, confidence, evidence, count) in found.items()
        }

    assert verdicts(lim_augmentation.claims(cells(2.0, 0.5))) == ["holds"] * 3
    assert verdicts(lim_augmentation.claims(cells(0.1, 1.0))) == ["holds", "does not hold", "does not hold"]


def test_copies_have_the_labels_of_their_originals():
    images = lim_augmentation.load_images("digits", 6, 10, 8)
    more = lim_augmentation.with_copies(images, 1.0, 3, 0)
    assert more.x.shape == (24, 8, 8)
    np.testing.assert_array_equal(more.x[::4], images.x)
    np.testing.assert_array_equal(more.y, images.y.repeat(4))
    moved = np.abs(more.x.reshape(6, 4, 64) - images.x.reshape(6, 1, 64)).mean((0, 2))
    assert moved[0] == 0
    assert (moved[1:] > 0.02).all()
    np.testing.assert_array_equal(more.x_test, images.x_test)


def test_an_error_is_worth_the_images_that_it_takes_without_an_invariance():
    # 1/size: a tenth of the error takes ten times as many images
    plain = {100: 10.0, 1000: 1.0}
    assert subsets.worth(plain, 10.0) == pytest.approx(100)
    assert subsets.worth(plain, 10**0.5) == pytest.approx(10**2.5)
    assert subsets.worth(plain, 20.0) == pytest.approx(50)
    assert subsets.worth(plain, 0.5) == math.inf
    assert subsets.worth({100: 10.0, 1000: 10.0}, 12.0) == pytest.approx(100)


def test_subsets_need_a_lower_error_at_every_size():
    lower = {"affine+deformation": {"error": 5.0}}
    claims = subsets.claims(numbers_of(subsets, special=lower))
    assert verdicts(claims) == ["holds", "holds"]
    somewhere = lower | {"affine+deformation, 130": {"error": 12.0}}
    assert verdicts(subsets.claims(numbers_of(subsets, special=somewhere))) == ["does not hold"] * 2
    hardly = lower | {"affine+deformation, 130": {"error": 9.9}}
    assert verdicts(subsets.claims(numbers_of(subsets, special=hardly))) == ["undecided", "holds"]
