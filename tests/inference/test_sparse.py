import pytest
import torch

from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.stochastic.variational import bound_terms
from orbitwise.likelihoods import Bernoulli, Gaussian
from orbitwise.orbits import SampledOrbit
from orbitwise.transforms import Translation
from tests.inference.sparse_problems import exact_evidence, random_problem


def model_of(
    seed=0, count=40, bound="tight", domain="g", learns=False, size=8, selection="greedy", **options
):
    process, rows, noise, generator = random_problem(seed, count, **options)
    model = SparseModel(process, rows, Gaussian(noise.item()), bound, domain, learns)
    model.place_inducing(model.choose(size, selection, generator).inducing)
    return model, generator


@pytest.mark.parametrize("domain", ["g", "f"])
@pytest.mark.parametrize("bound", ["titsias", "tight", "cg"])
def test_bound_and_bracket_of_invariant_models(bound, domain):
    model, _ = model_of(bound=bound, domain=domain, invariant=True, weighted=True)
    truth = exact_evidence(model.process, model.observations, model.noise).item()
    bracket = model.bracket()
    assert model.bound().item() <= bracket.lower + 1e-6 <= truth + 2e-6
    assert truth <= bracket.upper + 1e-6
    assert model.num_inducing == 8


def test_bounds_are_ordered():
    values = [model_of(bound=bound, size=5)[0].bound().item() for bound in ("titsias", "tight", "cg")]
    assert values[0] < values[1] - 1e-3, "none of these is rounding"
    assert values[1] < values[2] - 1e-3


def test_refining_by_conjugate_gradients_narrows_the_bracket():
    model, _ = model_of(size=6)
    rough, fine = model.bracket(refine=False), model.bracket(refine=True)
    assert rough.lower <= fine.lower <= fine.upper <= rough.upper, "the fine one is within, by construction"
    assert fine.upper - fine.lower < 0.5 * (rough.upper - rough.lower)


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("outputscale", [1e-10, 1e-14])
def test_a_bracket_narrower_than_rounding_still_holds_the_evidence(outputscale, refine):
    """Where the signal is weak, both ends and the evidence agree to the last digits."""
    for seed in range(20):
        process, rows, noise, generator = random_problem(seed, 60)
        process.kernel.outputscale = outputscale
        model = SparseModel(process, rows, Gaussian(noise.item()))
        model.place_inducing(model.choose(12, "greedy", generator).inducing)
        truth = exact_evidence(process, rows, model.noise).item()
        bracket = model.bracket(refine)
        assert bracket.lower <= truth <= bracket.upper
        assert bracket.upper - bracket.lower < 1e-4


@pytest.mark.parametrize("bound", ["tight", "cg"])
def test_gradients_reach_points_and_hyperparameters(bound):
    model, _ = model_of(bound=bound, learns=True, size=4)
    model.bound()
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    slopes = torch.autograd.grad(model(), learned)
    assert all(bool(slope.isfinite().all()) and bool((slope != 0).any()) for slope in slopes)
    assert any(parameter is model.raw_inducing for parameter in learned)


def test_a_frozen_orbit_is_learned_through_both_sides():
    process, rows, noise, generator = random_problem(3, 30)
    orbit = SampledOrbit(Translation(2), -0.5, 0.5)
    frozen = OrbitAverage(orbit.freeze(4, generator)).double()
    observations = Observations(frozen, rows.x, rows.targets)
    model = SparseModel(process, observations, Gaussian(noise.item()), domain="f")
    model.place_inducing(model.choose(6, "greedy", generator).inducing)
    learned = [parameter for parameter in frozen.parameters() if parameter.requires_grad]
    slopes = torch.autograd.grad(model(), learned)
    for parameter, slope in zip(learned, slopes, strict=True):
        for entry in range(parameter.numel()):
            flat, ends = parameter.data.view(-1), []
            for step in (1e-5, -2e-5):
                flat[entry] += step
                ends.append(model().item())
            flat[entry] += 1e-5
            expected = (ends[0] - ends[1]) / 2e-5
            assert slope.reshape(-1)[entry].item() == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("selection", ["auto", "greedy", "kmeans", "random"])
@pytest.mark.parametrize("domain", ["g", "f"])
def test_every_selection_gives_the_number_asked_for(selection, domain):
    model, _ = model_of(selection=selection, domain=domain, invariant=True, size=7)
    assert model.num_inducing == 7
    assert model.bound().isfinite()


def test_duplicated_candidates_are_taken_once_and_said_to_be_all():
    process, rows, noise, generator = random_problem(1, 10)
    doubled = Observations(Evaluation(), rows.x.repeat(3, 1), rows.targets.repeat(3, 1))
    model = SparseModel(process, doubled, Gaussian(noise.item()))
    for selection in ("greedy", "kmeans", "random"):
        chosen = model.choose(25, selection, generator)
        assert chosen.is_complete
        assert len(chosen.inducing) == len(torch.unique(chosen.inducing, dim=0)) <= 10


def test_greedy_choice_stops_where_the_rest_is_worth_little():
    process, rows, noise, generator = random_problem(1, 200, width=1)
    model = SparseModel(process, rows, Gaussian(noise.item()))
    few, all_of_them = (model.choose(150, "greedy", generator, worth).inducing for worth in (0.1, 1e-9))
    assert len(few) < len(all_of_them)
    model.place_inducing(few)
    assert model.bracket(refine=True).upper - model.bracket(refine=True).lower < 0.11 * 200


def test_the_iterative_bound_predicts_with_the_exact_mean():
    model, _ = model_of(bound="cg", size=4)
    sparse, _ = model_of(bound="tight", size=4)
    queries = model.observations.x[:5] + 0.1
    covariance = model.process.covariance(model.observations.atoms())
    weights = torch.linalg.solve(
        covariance + model.noise * torch.eye(40).double(), model.observations.targets
    )
    cross = model.process.covariance(Evaluation().atoms(queries), model.observations.atoms())
    with torch.no_grad():
        mean = model.posterior().moments(Evaluation(), queries).mean
        torch.testing.assert_close(mean, cross @ weights, rtol=1e-3, atol=1e-2)
        assert isinstance(sparse.posterior(), SparsePosterior)
        rough = sparse.posterior().moments(Evaluation(), queries).mean
        assert (rough - cross @ weights).abs().max() > (mean - cross @ weights).abs().max()


def test_points_can_be_held_and_put_back():
    model, generator = model_of(size=5, learns=True)
    held, before = model.held_inducing(), model.bound().item()
    model.place_inducing(model.choose(9, "random", generator).inducing)
    assert model.num_inducing == 9
    model.place_inducing(held)
    assert model.bound().item() == pytest.approx(before, abs=1e-9)


def signs_of(invariant=False):
    process, rows, _, generator = random_problem(2, 30, outputs=2, invariant=invariant, weighted=True)
    signs = Observations(rows.functional, rows.x, rows.targets.sign(), rows.weight)
    model = SparseModel(process, signs, Bernoulli())
    model.place_inducing(model.choose(12, "greedy", generator).inducing)
    return model, generator


def test_better_tilts_raise_the_bound_of_signs_and_give_its_posterior():
    model, _ = signs_of(invariant=True)
    before = model.bound().item()
    for _ in range(6):
        model.improve_tilt()
    assert model.bound().item() > before + 0.1
    # the posterior attains the bound: E_q of the terms less KL
    posterior, rows = model.posterior(), model.observations
    with torch.no_grad():
        data = bound_terms(
            model.process,
            model.likelihood,
            posterior.q,
            model.inducing,
            posterior.lower,
            rows.atoms(),
            rows.targets,
            tilt=model.tilt,
            weight=rows.weight,
        ).data
    assert (data - posterior.q.divergence()).item() == pytest.approx(model.bound().item(), abs=1e-3)


def test_a_gaussian_with_a_noise_for_each_output_is_bounded_by_its_quadratic_terms():
    process, rows, noise, generator = random_problem(3, 30, outputs=2)
    one, two = Gaussian(noise.item()), Gaussian(noise.item(), num_outputs=2)
    models = [SparseModel(process, rows, each) for each in (one, two)]
    points = models[0].choose(8, "greedy", generator).inducing
    for each in models:
        each.place_inducing(points)
    assert models[1].bound().item() == pytest.approx(models[0].bound().item(), rel=1e-10)
    with pytest.raises(ValueError, match="one variance"):
        models[1].bracket()
    with pytest.raises(ValueError, match="bound='cg' needs Gaussian noise"):
        SparseModel(process, rows, two, "cg")


@pytest.mark.parametrize("width", [1, 12])
def test_the_selection_with_the_best_bound_is_placed(width):
    process, rows, noise, generator = random_problem(4, 120, width=width)
    process.kernel.base_kernel.lengthscale = 0.5 * width
    model = SparseModel(process, rows, Gaussian(noise.item()))
    state, bounds = generator.get_state(), {}
    model.place_best(20, generator)
    best = model.bound().item()
    generator.set_state(state)
    for selection in ("greedy", "kmeans", "random"):
        model.place_inducing(model.choose(20, selection, generator).inducing)
        bounds[selection] = model.bound().item()
    assert best == pytest.approx(max(bounds.values()), rel=1e-12)
    assert best > bounds["random"] + 1e-3


def test_wrong_names_are_refused():
    process, rows, noise, generator = random_problem(1, 10)
    with pytest.raises(Exception, match="bound"):
        SparseModel(process, rows, Gaussian(noise.item()), "loose")
    model = SparseModel(process, rows, Gaussian(noise.item()))
    with pytest.raises(ValueError, match="selection must be"):
        model.choose(3, "best", generator)
