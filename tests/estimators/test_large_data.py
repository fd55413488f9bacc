"""Data larger than memory: the same rows give the same model, whatever holds them, and the same messages."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor
from orbitwise.estimators import predict_in_blocks, rungs
from orbitwise.estimators.sources import open_data
from orbitwise.inference import stored_rows
from orbitwise.inference.sparse import certificate
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.inference.stored_rows import StoredRows

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class Pairs(Dataset):
    """A data set of (x, y), read one by one."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return torch.from_numpy(self.x[place]), self.y[place]


class Inputs(Pairs):
    def __getitem__(self, place):
        return self.x[place]


class Stream(IterableDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return zip(self.x, self.y, strict=True)


@pytest.fixture
def small(monkeypatch):
    """From a few rows on, data stay where they are."""
    monkeypatch.setattr(stored_rows, "LARGE_NUMBERS", 50)
    monkeypatch.setattr(stored_rows, "LARGE_ROWS", 20)


@pytest.fixture
def wave():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    x = x[np.lexsort(x.T[::-1])]
    return x, 3 + np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=300)


def sparse(**settings):
    kernel = ScaleKernel(RBFKernel(ard_num_dims=3))  # known, so that no start has to be chosen
    return SparseGPRegressor(kernel, num_inducing=20, max_iterations=3, random_state=0, **settings)


def rows_of(model):
    """The observations by which a sparse regressor learned."""
    return vars(model.fit_result_.objective)["observations"]


def numbers(model, x):
    mean, deviation = model.predict(x, return_std=True)
    return np.concatenate([[model.log_evidence_, *np.ravel(model.noise_)], mean, deviation])


def test_a_file_of_rows_is_fitted_as_the_array_is(wave, tmp_path, monkeypatch):
    x, y = wave
    wanted = numbers(sparse().fit(x, y), x[:9])
    monkeypatch.setattr(stored_rows, "LARGE_NUMBERS", 50)
    monkeypatch.setattr(stored_rows, "LARGE_ROWS", 20)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    model = sparse().fit(tmp_path / "x.npy", tmp_path / "y.npy")
    assert isinstance(rows_of(model).x, StoredRows)
    np.testing.assert_allclose(numbers(model, x[:9]), wanted, rtol=1e-10)


def sources(x, y, folder):
    tensors = (torch.from_numpy(x), torch.from_numpy(y))
    np.save(folder / "x.npy", x)
    table = pa.table({"a": x[:, 0], "y": y, "b": x[:, 1], "c": x[:, 2]})
    pyarrow.parquet.write_table(table, folder / "table.parquet", row_group_size=70)
    return {
        "memmap": (np.load(folder / "x.npy", mmap_mode="r"), y),
        "path": (str(folder / "x.npy"), y),
        "tensor": tensors,
        "tensors": (TensorDataset(*tensors), None),
        "data set": (Pairs(x, y), None),
        "stream": (Stream(x, y), None),
        "loader": (DataLoader(Pairs(x, y), batch_size=64), None),
        "inputs": (Inputs(x, y), y),
        "parquet": (folder / "table.parquet", "y"),
        "table": (table, "y"),
        "columns": (pa.table({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2]}), y),
    }


def test_every_source_gives_the_same_rows(wave, tmp_path):
    x, y = wave
    for name, (inputs, targets) in sources(x, y, tmp_path).items():
        found = open_data(inputs, targets)
        assert np.array_equal(np.asarray(found.x), x), name
        assert found.x.dtype in (np.float32, torch.float32), name
        assert np.array_equal(np.asarray(found.y), y), name
        assert found.names == (["a", "b", "c"] if name in ("parquet", "table", "columns") else None)


@pytest.mark.parametrize("name", ["memmap", "loader", "parquet"])
def test_sources_give_the_bits_of_arrays(name, wave, tmp_path, monkeypatch):
    x, y = wave
    columns = ["a", "b", "c"]
    inputs, targets = sources(x, y, tmp_path)[name]
    for is_large in (False, True):
        if is_large:
            monkeypatch.setattr(stored_rows, "LARGE_NUMBERS", 50)
            monkeypatch.setattr(stored_rows, "LARGE_ROWS", 20)
        wanted = numbers(sparse().fit(x, y), x[:9])
        model = sparse().fit(inputs, targets)
        assert isinstance(rows_of(model).x, StoredRows) is is_large
        assert list(getattr(model, "feature_names_in_", [])) == (columns if name == "parquet" else [])
        new = pd.DataFrame(x[:9], columns=columns) if name == "parquet" else x[:9]
        assert np.array_equal(numbers(model, new), wanted)


def test_equal_rows_are_merged_where_they_are(wave, small):
    x, y = wave
    twice, noisy = np.concatenate([x, x[:100]]), np.concatenate([y, y[:100] + 0.5])
    model = sparse().fit(twice, noisy)
    rows = rows_of(model)
    assert len(rows) == 300
    assert rows.targets.shape == (300, 1)
    scale = model.target_scale_
    np.testing.assert_allclose(scale.targets(rows.targets)[:100, 0], y[:100] + 0.25)
    weighted = sparse().fit(x, y, sample_weight=1.0 + (np.arange(300) < 100))
    assert weighted.fit_result_.objective.observations.count == rows.count == 400


ENGINES = [
    (InvariantGPRegressor, {"inference": "variational", "num_steps": 9}),
    (InvariantGPRegressor, {"inference": "collapsed", "max_iterations": 3}),
    (InvariantGPRegressor, {"inference": "variational", "num_steps": 9, "invariance": "sign"}),
    (InvariantGPClassifier, {"inference": "variational", "num_steps": 9, "noise": "evidence"}),
    (InvariantGPClassifier, {"inference": "collapsed", "max_iterations": 3, "noise": "evidence"}),
    (
        InvariantGPClassifier,
        {"inference": "variational", "num_steps": 9, "likelihood": "stick_breaking"},
    ),
]


@pytest.mark.parametrize(("kind", "settings"), ENGINES, ids=str)
def test_engines_stream_what_they_do_not_hold(kind, settings, wave, monkeypatch):
    x, y = wave
    targets = y if kind is InvariantGPRegressor else np.digitize(y, [2.5, 3.5])
    method = "predict" if kind is InvariantGPRegressor else "predict_proba"

    def fitted():
        kernel = ScaleKernel(RBFKernel())
        model = kind(kernel, num_inducing=15, random_state=0, **settings).fit(x, targets)
        return np.append(model.log_evidence_, getattr(model, method)(x[:7])), model

    wanted, _ = fitted()
    monkeypatch.setattr(stored_rows, "LARGE_NUMBERS", 50)
    monkeypatch.setattr(stored_rows, "LARGE_ROWS", 20)
    found, model = fitted()
    assert isinstance(model.model_.observations[0].x, StoredRows)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    monkeypatch.setattr(rungs, "MOST_HELD", 1)
    np.testing.assert_allclose(fitted()[0], wanted, rtol=1e-6)


def test_inducing_points_climb_without_holding_rows(wave, small, monkeypatch):
    x, y = wave
    settings = {"inference": "variational", "num_steps": 9, "num_inducing": 80}
    held = InvariantGPRegressor(ScaleKernel(RBFKernel()), random_state=0, **settings)
    monkeypatch.setattr("orbitwise.estimators.engines.LEARNED_WITH", 20)
    held.fit(x, y)
    monkeypatch.setattr(rungs, "MOST_HELD", 1)
    streamed = InvariantGPRegressor(**held.get_params()).fit(x, y)
    assert held.num_inducing_ == streamed.num_inducing_ == 80
    assert held.log_evidence_ == pytest.approx(streamed.log_evidence_, rel=1e-9)
    np.testing.assert_allclose(held.predict(x[:9]), streamed.predict(x[:9]), rtol=1e-8)


def test_exact_inference_holds_its_rows(wave, small):
    x, y = wave
    model = InvariantGPRegressor(max_iterations=2).fit(x[:80], y[:80])
    assert model.inference_ == "exact"
    assert np.isfinite(model.predict(x[:3])).all()


def test_batches_of_a_file_add_up(wave, small, tmp_path):
    x, y = wave
    np.save(tmp_path / "x.npy", x)
    start = sparse().fit(x[:100], y[:100])
    whole = sparse().fit(x[:100], y[:100]).partial_fit(tmp_path / "x.npy", y)
    for part in (slice(0, 150), slice(150, 300)):
        start.partial_fit(x[part], y[part])
    assert whole.certificate_.num_rows == 400
    np.testing.assert_allclose(numbers(whole, x[:9]), numbers(start, x[:9]), rtol=1e-9)


def test_images_keep_their_form(small, tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(60, 5, 4, 3), dtype=np.uint8)
    y = images.mean((1, 2, 3)) / 10
    settings = {"inference": "variational", "num_steps": 6, "num_inducing": 8, "num_nodes": 2}
    model = InvariantGPRegressor(invariance="flip", random_state=0, **settings)
    stored = model.fit(images, y)
    assert stored.form_.channels == "last"
    assert stored.form_.brightness == "bytes"
    found = stored.predict(images[:9])
    rows = stored.model_.observations[0].x
    wanted = np.moveaxis(images, -1, 1).reshape(60, -1)
    assert torch.equal(rows[:], torch.from_numpy(wanted).double())
    assert np.isfinite(found).all()


def message(fit):
    with pytest.raises((ValueError, TypeError)) as found:
        fit()
    return str(found.value)


def broken(x, y, kind):
    x, y = x.astype(float), y.copy()
    if kind == "NaN":
        x[270, 1] = np.nan
    elif kind == "infinite":
        x[3, 2] = -np.inf
    elif kind == "large":
        x[280, 0] = -1e80
    elif kind == "small":
        x *= 1e-90
    elif kind == "NaN target":
        y[7] = np.nan
    elif kind == "large target":
        y[7] = 1e90
    elif kind == "lengths":
        y = y[:-1]
    elif kind == "no targets":
        y = None
    elif kind == "text":
        y = "price"
    return x, y


KINDS = ["NaN", "infinite", "large", "small", "NaN target", "large target", "lengths", "no targets", "text"]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_those_of_arrays_in_memory(kind, wave, monkeypatch):
    x, y = broken(*wave, kind)
    for model in (sparse(), InvariantGPRegressor(inference="variational")):
        monkeypatch.undo()
        wanted = message(lambda model=model: model.fit(x, y))
        monkeypatch.setattr(stored_rows, "LARGE_NUMBERS", 50)
        monkeypatch.setattr(stored_rows, "LARGE_ROWS", 20)
        assert message(lambda model=model: model.fit(x, y)) == wanted


def test_labels_are_checked(wave, monkeypatch):
    x, y = wave
    for labels in (y, np.zeros(300, dtype=int), np.ones((300, 2), dtype=int)):
        monkeypatch.undo()
        model = InvariantGPClassifier(inference="variational")
        wanted = message(lambda model=model, labels=labels: model.fit(x, labels))
        monkeypatch.setattr(stored_rows, "LARGE_NUMBERS", 50)
        monkeypatch.setattr(stored_rows, "LARGE_ROWS", 20)
        assert message(lambda model=model, labels=labels: model.fit(x, labels)) == wanted


@pytest.mark.parametrize(
    ("source", "targets", "wanted"),
    [
        (pa.table({"a": ["x", "y"], "y": [1.0, 2.0]}), "y", "Column 'a' holds values of type string"),
        (pa.table({"a": [1.0, 2.0]}), "b", "y is to be the column 'b', but the columns are"),
        (pa.table({"a": [1.0, 2.0]}), "a", "Every column of the table is a target"),
        (Pairs(np.ones((3, 2)), np.ones(3)), np.ones(3), "leave y out"),
        (Inputs([{"a": 1}], [1]), None, "Items of a data set must be"),
        (Inputs([np.ones(2), np.ones(3)], [1, 1]), None, "several shapes, such as"),
        (Pairs(np.ones((0, 2)), np.ones(0)), None, "the source is empty"),
        (DataLoader(Inputs([np.ones(2, np.uint8), np.ones(2)], [1, 1])), None, "give all in one type"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_sources_that_cannot_be_used_are_refused(source, targets, wanted):
    assert wanted in message(lambda: open_data(source, targets))


def test_dates_of_a_table_are_refused():
    dates = pa.array([0, 1], pa.timestamp("s"))
    wanted = r"X holds dates or durations \(timestamp\[s\] in column 'when'\)"
    with pytest.raises(TypeError, match=wanted):
        open_data(pa.table({"when": dates, "y": [1.0, 2.0]}), "y")


def test_copies_are_temporary_and_rows_arrays_stay(wave):
    x, y = wave
    opened = open_data(Pairs(x, y))
    assert isinstance(opened.x, np.memmap)
    assert opened.x.dtype == np.float32
    assert np.array_equal(opened.x, x)
    assert np.array_equal(opened.y, y)
    assert open_data(x, y).x is x


def test_a_fit_resumes_with_rows_of_a_file(wave, small, tmp_path):
    x, y = wave
    np.save(tmp_path / "x.npy", x)
    folder = str(tmp_path / "progress")
    first = sparse(checkpoint=folder).fit(tmp_path / "x.npy", y)
    names = sorted(each.name for each in (tmp_path / "progress").iterdir())
    again = sparse(checkpoint=folder).fit(np.load(tmp_path / "x.npy"), y)
    assert sorted(each.name for each in (tmp_path / "progress").iterdir()) == names
    assert np.array_equal(numbers(first, x[:5]), numbers(again, x[:5]))
    x[0, 0] += 1
    sparse(checkpoint=folder).fit(x, y)
    assert len(list((tmp_path / "progress").iterdir())) > len(names)


def test_predictions_stream(wave, tmp_path, monkeypatch):
    x, y = wave
    model = sparse().fit(x, y)
    wanted, deviation = model.predict(x, return_std=True)
    quantiles = model.predict_quantiles(x)
    monkeypatch.setattr(stored_rows, "LARGE_NUMBERS", 500)
    monkeypatch.setattr(stored_rows, "LARGE_ROWS", 20)
    monkeypatch.setattr("orbitwise.estimators.sources.BLOCK_NUMBERS", 1)
    monkeypatch.setattr("orbitwise.estimators.sources.ITEMS_AT_ONCE", 64)
    for name, (inputs, _) in sources(x, y, tmp_path).items():
        if name in ("tensor", "parquet", "table"):
            continue  # a tensor is an array, and these have other columns
        np.testing.assert_allclose(model.predict(inputs), wanted, rtol=1e-12, err_msg=name)
    found = model.predict(x, return_std=True)
    np.testing.assert_allclose(found[1], deviation, rtol=1e-9)
    np.testing.assert_allclose(model.predict_quantiles(x), quantiles, rtol=1e-9)
    with pytest.raises(ValueError, match="all rows together"):
        model.predict(x, return_cov=True)


def test_classes_stream(wave, monkeypatch):
    x, y = wave
    model = InvariantGPClassifier(ScaleKernel(RBFKernel()), inference="exact", max_iterations=1)
    model.fit(x[:60], (y > 3)[:60])
    whole = model.predict_proba(x[:100])
    monkeypatch.setattr(stored_rows, "LARGE_NUMBERS", 200)
    monkeypatch.setattr(stored_rows, "LARGE_ROWS", 20)
    monkeypatch.setattr("orbitwise.estimators.sources.BLOCK_NUMBERS", 1)
    monkeypatch.setattr("orbitwise.estimators.sources.ITEMS_AT_ONCE", 30)
    np.testing.assert_allclose(model.predict_proba(x[:100]), whole, rtol=1e-9)
    assert list(model.predict(DataLoader(Inputs(x[:100], y)))) == list(model.predict(x[:100]))


def test_columns_of_a_table_are_found_by_name(wave):
    x, y = wave
    columns = {"b": x[:, 1], "y": y, "c": x[:, 2], "a": x[:, 0]}
    model = sparse().fit(pd.DataFrame(x, columns=["a", "b", "c"]), y)
    wanted = model.predict(pd.DataFrame(x, columns=["a", "b", "c"]))
    np.testing.assert_allclose(model.predict(pa.table(columns)), wanted, rtol=1e-12)
    with pytest.raises(ValueError, match="no column 'c'"):
        model.predict(pa.table({"a": x[:, 0], "b": x[:, 1]}))


def test_blocks_go_to_a_file_or_by_hand(wave, tmp_path):
    x, y = wave
    model = sparse().fit(x, y)
    wanted = model.predict(x)
    parts = list(predict_in_blocks(model, x, rows_at_once=128))
    assert [len(each) for each in parts] == [128, 128, 44]
    np.testing.assert_allclose(np.concatenate(parts), wanted, rtol=1e-12)
    pairs = list(predict_in_blocks(model, x, return_std=True))
    assert len(pairs[0]) == 2
    np.save(tmp_path / "x.npy", x)
    written = predict_in_blocks(model, tmp_path / "x.npy", out=tmp_path / "y.npy")
    assert isinstance(written, np.memmap)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-12)
    own = np.empty((300, 3))
    predict_in_blocks(model, DataLoader(Pairs(x, y), 100), "predict_quantiles", out=own)
    np.testing.assert_allclose(own, model.predict_quantiles(x), rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"out": np.empty(299)}, "out has 299 rows"),
        ({"out": np.empty(301)}, "do not fill out"),
        ({"out": np.empty(300), "return_std": True}, "several"),
        ({"out": "never.npy", "loader": True}, "not known before it is read"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_files_that_do_not_fit_are_refused(wave, settings, wanted):
    x, y = wave
    model = sparse(noise=0.1).fit(x[:50], y[:50])
    source = DataLoader(Pairs(x, y)) if settings.pop("loader", False) else x
    assert wanted in message(lambda: predict_in_blocks(model, source, **settings))


def test_hyperparameters_of_many_rows_are_learned_from_some(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 2))
    y = np.sin(x[:, 0]) * x[:, 1] + 0.2 * rng.normal(size=800)
    options = {"optimize_inducing": False, "max_inducing": 30, "max_iterations": 15}

    def fitted():
        counts = []
        forward = SparseModel.forward
        monkeypatch.setattr(SparseModel, "forward", lambda m: counts.append(m.num_rows) or forward(m))
        model = SparseGPRegressor(ScaleKernel(RBFKernel()), random_state=0, **options).fit(x, y)
        monkeypatch.setattr(SparseModel, "forward", forward)
        return model, counts

    whole, _ = fitted()
    monkeypatch.setattr(certificate, "MANY_ROWS", 700)
    monkeypatch.setattr(certificate, "LEARN_ROWS", 300)
    monkeypatch.setattr(certificate, "ROWS_PER_INDUCING", 1)
    some, counts = fitted()
    # at most a few steps of each stage are taken with all rows
    assert min(counts) == 300
    assert 0 < counts.count(800) <= 5 * len(some.certificate_.history)
    assert some.certificate_.num_rows == 800
    assert some.log_evidence_ > whole.log_evidence_ - 0.01 * 800
