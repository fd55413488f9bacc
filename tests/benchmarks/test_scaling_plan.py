"""The simulation of what many processes send: known cases, and that more of them cannot be worth nothing."""

import math

import pytest

from benchmarks.scaling_plan import costs, everyone_to_everyone, exchange, formula, plan

NETWORK = {
    "gpus": 8,
    "within_bytes_a_second": 100.0,
    "between_bytes_a_second": 10.0,
    "within_latency": 0.0,
    "between_latency": 0.0,
}
WANTED = {"inducing": 100, "draws": 8, "side": 10}


def test_one_node_takes_what_its_links_take():
    # each of 4 processes sends 3 parts of 25 bytes, twice
    assert max(exchange([0.0] * 4, 100.0, NETWORK)) == pytest.approx(2 * 3 * 25 / 100)
    assert formula(4, 100.0, NETWORK) == pytest.approx(2 * 3 * 25 / 100)


def test_messages_between_nodes_are_slower_and_nothing_is_faster_than_the_links():
    simulated = max(exchange([0.0] * 16, 1600.0, NETWORK))
    assert formula(16, 1600.0, NETWORK) == pytest.approx(2 * (7 * 100 / 100 + 8 * 100 / 10))
    assert formula(16, 1600.0, NETWORK) <= simulated < 2 * formula(16, 1600.0, NETWORK)


def test_all_wait_for_the_last_to_begin():
    late = everyone_to_everyone([0.0, 0.0, 7.0], 10.0, NETWORK | {"within_latency": 0.5})
    assert min(late) >= 7.0 + 10 / 100 + 0.5 - 1e-12
    assert max(late) < 8.0


def test_costs_grow_by_the_measured_exponents():
    one = {"row_seconds": 1.0, "fixed_seconds": 2.0}
    one |= {"row_exponents": {"inducing": 1.0, "draws": 0.5, "side": 2.0}}
    one |= {"fixed_exponents": {"inducing": 3.0, "draws": 0.0, "side": 0.0}}
    measured = {"sizes": WANTED | {"batch_size": 4}, "processes": {"1": one}}
    wanted = {"inducing": 200, "draws": 32, "side": 20}
    assert costs(measured, wanted, 2.0) == pytest.approx([2 * 2 * 4 / 2, 8 * 2 / 2])
    # draws cost at most in proportion to their number, and whole images in proportion to their pixels
    assert costs(measured, wanted, 2.0, at_most=True) == pytest.approx([2 * 4 * 4 / 2, 8 * 2 * 4 / 2])


def test_a_plan_counts_steps_and_loses_what_is_sent():
    network = NETWORK | {"within_bytes_a_second": 1e9, "between_bytes_a_second": 1e9}
    records = plan(0.01, 0.1, WANTED, 1e4, 2.0, 32, network, repeats=2)
    alone, two = records[0], records[1]
    assert alone["steps"] == math.ceil(2e4 / 32)
    assert alone["step_seconds"] == pytest.approx(0.42)
    assert alone["efficiency"] == pytest.approx(1.0)
    assert two["steps"] == math.ceil(2e4 / 64)
    assert 0.5 < two["efficiency"] < 1.0
    assert two["bytes_a_step"] == 8 * (100**2 + 100 * 10 + 100 * 100 + 64 * 11)
