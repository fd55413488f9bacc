import json

import numpy as np
import pytest
import torch

from orbitwise.experiments import digit_pairs
from orbitwise.experiments.digit_pairs import MACHINES, VIRTUAL, Labels, choose, draw, fit, main
from orbitwise.functionals.tangents import PAPER_MOVES, moved_images

WIDTH = 5.0
FOLDS = np.arange(15) % 5


@pytest.fixture
def pair():
    """Bars that stand and bars that lie, at different places and of different grey."""
    generator = torch.Generator().manual_seed(0)
    images, is_first = torch.zeros(60, 28, 28, dtype=torch.float64), np.arange(60) % 2 == 1
    for image, stands in zip(images, is_first, strict=True):
        place = int(torch.randint(11, 16, (1,), generator=generator))
        bar = image[6:22, place : place + 2] if stands else image[place : place + 2, 6:22]
        bar.fill_(0.5 + 0.5 * float(torch.rand(1, generator=generator)))
    return images.flatten(1).numpy(), is_first


@pytest.fixture
def labels(pair):
    images, is_first = pair
    chosen = draw(is_first, 0, (10, 5))
    return Labels.of(images[chosen], is_first[chosen])


def test_draws_are_of_both_digits_and_classes_weigh_the_same(pair, labels):
    is_first = pair[1]
    chosen = draw(is_first, 0, (10, 5))
    assert len(np.unique(chosen)) == 15
    assert is_first[chosen].tolist() == [True] * 10 + [False] * 5
    assert chosen.tolist() == draw(is_first, 0, (10, 5)).tolist()
    assert chosen.tolist() != draw(is_first, 1, (10, 5)).tolist()
    for own in (labels.is_first, ~labels.is_first):
        assert labels.weights[own].sum() == pytest.approx(1.0)


def test_an_image_and_its_copies_weigh_as_much_as_the_image(labels):
    copies = labels.with_copies()
    size = 1 + len(PAPER_MOVES)
    assert copies.x.shape == (15 * size, 784)
    assert copies.weights.sum() == pytest.approx(2.0)
    assert np.allclose(copies.weights.reshape(15, size).sum(1), labels.weights)
    assert (copies.is_first.reshape(15, size) == labels.is_first[:, None]).all()
    assert np.array_equal(copies.x[::size], labels.x)
    moved = moved_images(torch.from_numpy(labels.x[3:4]), (28, 28))[0].numpy()
    assert np.array_equal(copies.x[3 * size + 1 : 4 * size], moved)


def test_held_out_images_are_judged_by_machines_that_never_saw_them(labels, monkeypatch):
    """A fold's fit has the other images alone, with the weights that they have among all."""
    seen = []

    def spy(machine, part, *settings):
        seen.append(part)
        return fit(machine, part, *settings)

    monkeypatch.setattr(digit_pairs, "fit", spy)
    found = choose("InvSVM", labels, FOLDS, WIDTH, (100.0,), (1.0,))
    for fold, part in enumerate(seen):
        kept = fold != FOLDS
        assert np.array_equal(part.x, labels.x[kept])
        assert np.array_equal(part.weights, labels.weights[kept])
    assert len(seen) == 5
    assert 0 <= found.error <= 1


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_is_chosen_and_classifies_the_others(machine, pair, labels):
    found = choose(machine, labels, FOLDS, WIDTH, (100.0,), (1.0, 100.0))
    assert 0 <= found.error <= 0.5
    assert found.rate == 100.0
    assert found.strength in ((0.0,) if machine == VIRTUAL else (1.0, 100.0))
    images, is_first = pair
    model = fit(machine, labels, WIDTH, found.rate, found.strength)
    assert (model.predict(images) != is_first).mean() < 0.2


def test_machines_keep_f_still_along_moves_of_an_image(labels):
    """Strong invariance: f of a moved image is nearer to f of the image than without one."""
    moved = moved_images(torch.from_numpy(labels.x), (28, 28)).numpy()

    def change(strength):
        model = fit("InvSVM, differences", labels, WIDTH, 100.0, strength)
        values = model.decision_function(labels.x)
        others = model.decision_function(moved.reshape(-1, 784)).reshape(15, -1)
        return np.abs(others - values[:, None]).max() / np.abs(values).max()

    assert change(1000.0) < 0.3 * change(0.0)


def test_of_equal_errors_the_strongest_invariance_is_taken(labels):
    """All these settings err alike on bars: the greatest strength wins, then the lightest loss."""
    rates, strengths = (1e5, 1e4), (0.01, 0.1)
    alone = [choose("InvSVM", labels, FOLDS, WIDTH, rates[:1], (one,)) for one in strengths]
    assert alone[0].error == alone[1].error
    found = choose("InvSVM", labels, FOLDS, WIDTH, rates, strengths)
    assert (found.rate, found.strength) == (1e4, 0.1)


def test_a_draw_in_the_record_is_not_run_again(tmp_path, monkeypatch):
    runs = []

    def run_draw(name, seed):
        runs.append((name, seed))
        return name, seed, {"machines": {"InvSVM": {"error": 1.0}}, "seconds": 0.0}

    monkeypatch.setattr(digit_pairs, "run_draw", run_draw)
    file = tmp_path / "record.json"
    main(["--out", str(file), "--pairs", "4-9", "--draws", "1"])
    main(["--out", str(file), "--pairs", "4-9", "7-1", "--draws", "2"])
    assert runs == [("4-9", 0), ("7-1", 0), ("4-9", 1), ("7-1", 1)]
    assert list(json.loads(file.read_text())["pairs"]["7-1"]) == ["0", "1"]
    main(["--out", str(file), "--draws", "3", "--time-limit", "0"])
    assert len(runs) == 4
