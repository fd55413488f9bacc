"""Two writers of one run folder: the second is refused; `writers.py` races any number of pairs."""

import os

import pytest

from tests.hostile.nursery import Nursery
from tests.hostile.writers import Race

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def test_no_pair_of_writers_leaves_a_wrong_model(nursery: Nursery):
    race = Race(nursery)
    for number, delay in enumerate((0.0, 0.3, 0.7, 1.1)):
        pair = race.run(number, delay)
        assert pair.wrong == ""
        assert 0 in pair.statuses
