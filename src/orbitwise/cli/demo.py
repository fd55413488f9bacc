"""The demonstration: which moves of handwritten digits does the evidence of 300 of them support?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from orbitwise import datasets
from orbitwise.cli.data import Data
from orbitwise.cli.invariances import IMAGE_CANDIDATES
from orbitwise.cli.learning import Plan

NUM_TRAINING = 300
OPTIONS: Mapping[str, Any] = {"max_nodes": 64}
"""On as many nodes ranges settle in some minutes; the default of 128 takes about twice as long."""


def demo_data(seed: int = 0) -> tuple[Data, Data]:
    """Training and test images of digits, 8 x 8 pixels between 0 and 1, chosen at random."""
    digits = datasets.load("digits")
    order = np.random.default_rng(seed).permutation(len(digits.x))
    parts = []
    for rows in (order[:NUM_TRAINING], order[NUM_TRAINING:]):
        x = digits.x[rows].reshape(len(rows), -1).astype(np.float64) / 16
        labels = [f"row {row}" for row in rows]
        parts.append(Data(x, digits.y[rows], labels, None, (8, 8), True, "digit"))
    return parts[0], parts[1]


def demo_plan(seed: int = 0, device: str = "cpu", options: Mapping[str, Any] = OPTIONS) -> Plan:
    """The usual candidates for images, with the options of their estimators."""
    return Plan("classification", IMAGE_CANDIDATES, seed, device, options)


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices are small: more threads gain little, lose much on a busy machine, and change last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
