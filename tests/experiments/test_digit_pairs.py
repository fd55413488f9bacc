import json

import pytest
import torch

from orbitwise.experiments import digit_pairs
from orbitwise.experiments.digit_pairs import MACHINES, PAPER_MOVES, Labels, Pair, choose, main
from orbitwise.inference.risk import DenseGram, Problem, newton


@pytest.fixture
def pair():
    """Bars that stand and bars that lie, at different places and of different grey."""
    generator = torch.Generator().manual_seed(0)
    images, codes = torch.zeros(60, 28, 28, dtype=torch.float64), torch.arange(60) % 2
    for image, code in zip(images, codes, strict=True):
        place = int(torch.randint(11, 16, (1,), generator=generator))
        bar = image[6:22, place : place + 2] if code else image[place : place + 2, 6:22]
        bar.fill_(0.5 + 0.5 * float(torch.rand(1, generator=generator)))
    return Pair(images.flatten(1), codes)


@pytest.fixture
def labels(pair):
    return Labels.of(pair, pair.draw(0, (10, 5)), 0)


def test_draws_are_of_both_digits_and_classes_weigh_the_same(pair, labels):
    chosen = pair.draw(0, (10, 5))
    assert len(chosen.unique()) == 15
    assert pair.is_first[chosen].tolist() == [1] * 10 + [0] * 5
    assert torch.equal(chosen, pair.draw(0, (10, 5)))
    assert not torch.equal(chosen, pair.draw(1, (10, 5)))
    for sign in (1, -1):
        assert labels.weights[labels.y == sign].sum() == pytest.approx(1.0)
    assert labels.folds.unique().tolist() == [0, 1, 2, 3, 4]


def test_a_sample_and_its_copies_weigh_as_much_as_the_sample(labels):
    virtual, rates = MACHINES[-1], torch.tensor([7.0], dtype=torch.float64)
    terms = virtual.terms(labels, torch.ones(1, 15).double(), rates, torch.zeros(1).double())
    total = sum(term.weights.sum() for term in terms)
    assert total.item() == pytest.approx(7.0 * 2)
    assert sum(term.num_rows for term in terms) == 15 * (1 + len(PAPER_MOVES))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_held_out_images_take_their_moves_with_them(machine, labels):
    """A fold's fit is that of the other images alone."""
    rates = torch.tensor([100.0], dtype=torch.float64)
    strengths = torch.tensor([1.0], dtype=torch.float64)
    process = digit_pairs.kernel_process(5.0, labels.x)
    kept = labels.folds != 0
    seen = kept.double()[None]
    gram = process.covariance(machine.rows(labels))
    whole = newton(Problem(DenseGram(gram), machine.terms(labels, seen, rates, strengths)))
    part = Labels(labels.x[kept], labels.y[kept], labels.folds[kept], labels.weights[kept])
    ones = torch.ones(1, int(kept.sum())).double()
    small = process.covariance(machine.rows(part))
    alone = newton(Problem(DenseGram(small), machine.terms(part, ones, rates, strengths)))
    torch.testing.assert_close(whole.objective, alone.objective)
    torch.testing.assert_close(
        whole.values[..., :15][..., kept], alone.values[..., : len(part.y)], rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_machine_is_chosen_and_classifies_the_others(machine, pair, labels, monkeypatch):
    monkeypatch.setattr(digit_pairs, "RATES", (100.0,))
    found = choose(machine, labels, 5.0)
    assert 0 <= found.error <= 0.5
    assert found.settings["rate"] == 100.0
    assert digit_pairs.test_error(machine, pair, pair.draw(0, (10, 5)), labels, found, 5.0) < 20


def test_differences_are_those_of_moved_images(labels):
    """The rows of differences on the Gram matrix of the virtual samples."""
    slopes, differences, virtual = (machine.rows(labels) for machine in MACHINES)
    process, count = digit_pairs.kernel_process(5.0, labels.x), len(labels.y)
    whole = process.covariance(virtual)
    originals = torch.arange(count).repeat_interleave(len(PAPER_MOVES))
    torch.testing.assert_close(
        process.covariance(differences)[:count, count:], whole[:count, count:] - whole[:count, originals]
    )
    assert len(process.covariance(slopes)) == len(whole)


def test_of_equal_errors_the_strongest_invariance_is_taken(labels, monkeypatch):
    """All these settings err alike on bars: the greatest strength wins, then the lightest loss."""
    monkeypatch.setattr(digit_pairs, "RATES", (1e5, 1e4))
    strengths = (0.01, 0.1)
    alone = [choose(MACHINES[0]._replace(strengths=(one,)), labels, 5.0) for one in strengths]
    assert alone[0].error == alone[1].error
    found = choose(MACHINES[0]._replace(strengths=strengths), labels, 5.0)
    assert found.settings == {"rate": 1e4, "strength": 0.1}


def test_a_draw_in_the_record_is_not_run_again(tmp_path, monkeypatch):
    runs = []

    def run_draw(name, seed, device):
        runs.append((name, seed, device))
        return name, seed, {"machines": {"InvSVM": {"error": 1.0}}, "seconds": 0.0}

    monkeypatch.setattr(digit_pairs, "run_draw", run_draw)
    file = tmp_path / "record.json"
    main(["--out", str(file), "--pairs", "4-9", "--draws", "1"])
    main(["--out", str(file), "--pairs", "4-9", "7-1", "--draws", "2"])
    assert runs == [("4-9", 0, "cpu"), ("7-1", 0, "cpu"), ("4-9", 1, "cpu"), ("7-1", 1, "cpu")]
    assert list(json.loads(file.read_text())["pairs"]["7-1"]) == ["0", "1"]
    main(["--out", str(file), "--draws", "3", "--time-limit", "0"])
    assert len(runs) == 4
