import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from orbitwise import InvariantGPRegressor, load, save
from orbitwise.functionals.averages import OTHER_GAUSS, freeze_in_common
from orbitwise.selection.differences import HELD_OUT, CommonNodes, common_nodes, has_data, nodes_of

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def fitted(invariance, num_nodes=4, **settings):
    rng = np.random.default_rng(1)
    X = rng.random((10, 5, 5))
    model = InvariantGPRegressor(
        invariance=invariance,
        image_shape=(5, 5),
        num_nodes=num_nodes,
        max_iterations=0,
        noise=0.1,
        **settings,
    )
    return model.fit(X, X[:, 1, 2] + 0.1 * rng.random(10))


def test_evidences_are_those_of_averages_written_out():
    model = fitted("affine", normalize_y=False)
    values, gain = CommonNodes(4).evidences(model)
    x, y = model.model_.observations[0].x, model.model_.observations[0].targets[:, 0].numpy()

    def slow(num_nodes, scramble):
        orbit = freeze_in_common(model.model_.latent.functional, num_nodes, scramble).orbit
        moved = [orbit.points(row[None]).points[0] for row in x]
        with torch.no_grad():
            blocks = [[model.kernel_(one, other).to_dense().mean() for other in moved] for one in moved]
        covariance = np.array(blocks, dtype=float) + 0.1 * np.eye(len(x))
        return multivariate_normal.logpdf(y, cov=covariance)

    assert values == pytest.approx([slow(4, number) for number in HELD_OUT], rel=1e-7)
    assert gain == pytest.approx(
        np.mean(values) - np.mean([slow(2, number) for number in HELD_OUT]), rel=1e-6
    )


def test_the_most_nodes_serve_all_and_what_is_exact_stays():
    none, flip, few, many = fitted(None), fitted("flip"), fitted("rotation", 4), fitted("affine", 8)
    assert [nodes_of(each) for each in (none, flip, few, many)] == [None, None, 4, 8]
    nodes = common_nodes([none, flip, few, many])
    assert nodes == CommonNodes(8)
    assert nodes.evidences(flip) == ((flip.log_evidence_,) * 4, 0.0)
    assert common_nodes([none, flip]) is None


def test_the_only_drawn_candidate_is_compared_on_its_own_kind_of_nodes():
    none, rotation = fitted(None), fitted("rotation", 12)
    nodes = common_nodes([none, rotation])
    values, gain = nodes.evidences(rotation)
    # Gauss's nodes are next to exact in one dimension
    assert values == pytest.approx([rotation.log_evidence_] * len(OTHER_GAUSS[1:]), abs=0.05)
    assert len(nodes.evidences(none)[0]) == len(values)
    assert abs(gain) < 0.05


def test_models_without_their_data_are_told_apart(tmp_path):
    model = fitted("affine")
    save(model, tmp_path / "model.orbit")
    assert has_data(model)
    assert not has_data(load(tmp_path / "model.orbit"))
