import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.exceptions import NotFittedError

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor, load, save
from orbitwise.report import write_report
from orbitwise.report.numbers import number
from orbitwise.report.page import printable, rendered, resource, unbroken

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

HOSTILE = "<script>window.hacked = 1</script>\"'&<img src=x onerror=alert(1)>"


def test_text_that_is_not_html_opens_and_closes_nothing(turned_page):
    hostile = "</script><script>alert('x')</script>\"&\x00\u2028"
    assert printable(hostile).count("�") == 2
    page = rendered(replace(turned_page, title=hostile, data={"name": hostile}))
    title = re.search("<h1>(.*?)</h1>", page).group(1)
    assert not set(title) & set("<>\"'\x00\u2028")
    assert "&lt;script&gt;" in title
    assert data_of(page)["name"] == hostile
    assert page.count("<script") == 2


def test_hyperparameters_are_named_with_their_units(turned_page):
    part = rendered(turned_page, "hyperparameters.html")
    for each in turned_page.model.hyperparameters_:
        assert f'<th scope="row">{each.name}</th>' in part
        assert number(each.values[0]) in part
    assert "f²" in part


def test_braces_of_users_are_no_template(turned_page):
    assert "<h1>{{ page }} {% if %}</h1>" in rendered(replace(turned_page, title="{{ page }} {% if %}"))


def test_numbers_stay_with_their_units():
    assert unbroken("158 ± 54 nats, 3 % of 5") == "158\u00a0±\u00a054\u00a0nats, 3\u00a0% of 5"


def test_the_files_of_the_page_are_shipped_and_load_nothing():
    for name in ("page.html", "macros.html", "page.css", "page.js"):
        text = resource(name)
        assert "://" not in text
        assert "@import" not in text
        assert "url(" not in text
    assert "</script" not in resource("page.js")


class Reader(HTMLParser):
    """Collects elements, and complains about those that are closed wrongly."""

    EMPTY = ("meta", "img", "input", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(path: Path) -> tuple[str, list[tuple[str, dict]]]:
    text = path.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return text, reader.elements


def data_of(text: str):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text).group(1))


@pytest.fixture(scope="module")
def page(turned, compared, tmp_path_factory):
    told: list[str] = []
    path = write_report(
        tmp_path_factory.mktemp("page") / "report.html",
        compared.best_estimator,
        turned.x,
        turned.y,
        X_test=turned.x_test,
        y_test=turned.y_test,
        comparison=compared,
        command="orbitwise compare digits",
        title="Three digits",
        progress=told.append,
    )
    assert "moving examples: rotation" in told or compared.best.name == "none"
    return path, *read(path)


def test_a_classification_of_images_has_every_part(page):
    _, text, elements = page
    identities = [attributes.get("id") for tag, attributes in elements if tag == "section"]
    assert identities == [
        "ranges",
        "orbit",
        "explorer-section",
        "changes",
        "comparison",
        "judgement",
        "extremes",
        "learning",
        "hyperparameters",
        "reproduction",
    ]
    answer = re.search(r'<p class="answer">(.*?)</p>', text).group(1)
    assert answer.startswith("Rotation up to ±")
    assert "no invariance" in answer
    assert "±\u00a0" in answer
    assert data_of(text)["moves"][0]["label"] == "rotation"


def test_the_page_needs_no_network_and_is_small(page):
    path, text, elements = page
    assert "://" not in text
    assert path.stat().st_size < 1_000_000
    for _, attributes in elements:
        assert attributes.get("src", "data:").startswith("data:")
        assert "href" not in attributes
    assert "default-src 'none'" in text


def test_every_picture_has_words_beside_it(page):
    assert all("alt" in attributes for tag, attributes in page[2] if tag == "img")


def test_it_is_the_same_file_when_written_again(page, turned, compared, tmp_path):
    again = write_report(
        tmp_path / "again.html",
        compared.best_estimator,
        turned.x,
        turned.y,
        X_test=turned.x_test,
        y_test=turned.y_test,
        comparison=compared,
        command="orbitwise compare digits",
        title="Three digits",
    )
    assert again.read_bytes() == page[0].read_bytes()


def test_permutations_of_columns_have_residuals_and_no_pictures(symmetric, tmp_path):
    path = write_report(tmp_path / "report.html", symmetric.model, symmetric.x, symmetric.y)
    text, _ = read(path)
    assert data_of(text) is None
    assert "Indifferent to the order of the columns (2 elements, exactly)." in text
    assert "each predicted from all the others" in text
    assert "Calibration of intervals" in text
    assert 'id="explorer-section"' not in text
    assert 'id="orbit"' not in text


def test_a_loaded_model_has_the_same_report(turned, tmp_path):
    save(turned.model, tmp_path / "model.orbitwise")
    text, _ = read(write_report(tmp_path / "a.html", load(tmp_path / "model.orbitwise"), turned.x, turned.y))
    assert "Rotation up to ±" in text
    assert "start and end" in text


def test_text_of_users_is_text(tmp_path):
    rng = np.random.default_rng(0)
    x = pandas.DataFrame(rng.normal(size=(30, 2)), columns=[HOSTILE, "plain"])
    y = np.where(x["plain"] > 0, HOSTILE, "$other$")
    model = InvariantGPClassifier(max_iterations=2, random_state=0).fit(x, y)
    path = write_report(tmp_path / "report.html", model, x, y, title=HOSTILE, command=HOSTILE)
    text, elements = read(path)
    assert text.count("window.hacked") == text.count("&lt;script&gt;window.hacked") > 5
    assert sum(tag == "script" for tag, _ in elements) == 2
    assert not any("onerror" in attributes for _, attributes in elements)


def test_class_names_of_images_cannot_leave_the_data(turned, tmp_path):
    names = np.array([HOSTILE, "</script>", "six"])[turned.y // 3 - 1]
    model = InvariantGPClassifier(
        invariance="flip", image_shape=(8, 8), likelihood="stick_breaking", max_iterations=2, random_state=0
    ).fit(turned.x, names)
    text, elements = read(write_report(tmp_path / "report.html", model, turned.x, names))
    assert sum(tag == "script" for tag, _ in elements) == 2
    assert HOSTILE in {name for example in data_of(text)["examples"] for name in example["shown"]}


def test_images_can_have_numbers_for_targets(turned, tmp_path):
    brightness = turned.x.mean((1, 2)) + 5
    model = InvariantGPRegressor(
        invariance="rotation+deformation", image_shape=(8, 8), num_nodes=2, max_iterations=2, random_state=0
    ).fit(turned.x[:30], brightness[:30])
    path = write_report(
        tmp_path / "r.html",
        model,
        turned.x[:30],
        brightness[:30],
        X_test=turned.x[30:],
        y_test=brightness[30:],
    )
    data = data_of(read(path)[0])
    assert data["kind"] == "number"
    assert len(data["moves"]) == 2
    middle, low, high = data["examples"][0]["answers"][0][10][0]
    assert low < middle < high


def test_sparse_models_and_several_outputs_are_reported(symmetric, tmp_path):
    sparse = SparseGPRegressor(num_inducing=15, max_iterations=2, random_state=0)
    sparse.fit(symmetric.x, symmetric.y)
    text, _ = read(write_report(tmp_path / "sparse.html", sparse, symmetric.x, symmetric.y))
    assert "which the model has seen" in text
    assert "it is at most" in text
    targets = np.stack([symmetric.y, symmetric.y**2], axis=1)
    several = InvariantGPRegressor(max_iterations=2, random_state=0).fit(symmetric.x, targets)
    text, _ = read(write_report(tmp_path / "several.html", several, symmetric.x, targets))
    assert "output 1: root mean square error" in text


def test_targets_of_other_outputs_or_rows_are_refused(symmetric, tmp_path):
    targets = np.stack([symmetric.y, symmetric.y**2], axis=1)
    several = InvariantGPRegressor(max_iterations=1, random_state=0).fit(symmetric.x, targets)
    with pytest.raises(ValueError, match="The model has 2 outputs, but y has 1 per row"):
        write_report(tmp_path / "report.html", several, symmetric.x, symmetric.y)
    with pytest.raises(ValueError, match="The model has 1 output, but y has 2 per row"):
        write_report(tmp_path / "report.html", symmetric.model, symmetric.x, targets)
    test = {"X_test": symmetric.x_test, "y_test": symmetric.y_test}
    with pytest.raises(ValueError, match="The model has 2 outputs, but y has 1 per row"):
        write_report(tmp_path / "report.html", several, symmetric.x, targets, **test)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        write_report(tmp_path / "report.html", symmetric.model, symmetric.x, symmetric.y[:-1])
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_not_fitted_is_refused(symmetric, tmp_path):
    with pytest.raises(NotFittedError):
        write_report(tmp_path / "report.html", InvariantGPRegressor(), symmetric.x, symmetric.y)
    assert not list(tmp_path.iterdir())


def test_images_with_their_channels_last_look_the_same(turned, tmp_path):
    colours = np.stack([turned.x, turned.x[:, ::-1], turned.x[:, :, ::-1]], 1)[:20]
    pages = []
    for order, images in (("first", colours), ("last", np.moveaxis(colours, 1, -1))):
        model = InvariantGPClassifier(invariance="rotation", num_nodes=2, max_iterations=2, random_state=0)
        model.fit(images, turned.y[:20])
        text, elements = read(write_report(tmp_path / f"{order}.html", model, images, turned.y[:20]))
        assert f"(images, channels {order})" in text
        sources = [attributes["src"] for tag, attributes in elements if tag == "img"]
        pages.append([each for each in sources if each.startswith("data:image/png")])
    assert len(pages[0]) > 20
    assert pages[0] == pages[1]
