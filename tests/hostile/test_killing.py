"""Runs that are killed between any two steps end with the same bits; `kills.py` kills any number of them."""

import os

import numpy as np
import pytest

from tests.hostile.kills import SUBJECTS, Killing
from tests.hostile.nursery import Nursery

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture(scope="module")
def killing(nursery: Nursery) -> Killing:
    return Killing(nursery)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_run_that_was_killed_ends_with_the_same_bits(killing: Killing, subject: str):
    place = SUBJECTS.index(subject)
    trial = killing.trial(subject, place, np.random.default_rng(place))
    assert trial.wrong == ""
    assert trial.kills
