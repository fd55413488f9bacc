"""The site in a real browser: from the landing page to a tutorial and the reference, search, a narrow screen.

The site is built first, unless ORBITWISE_SITE names a folder where it is.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import browsers
from tests.docs.pages import ROOT

TOOLS = ("sphinx", "myst_parser", "pydata_sphinx_theme", "numpydoc", "sphinx_gallery", "sphinx_design")
BUILT = os.environ.get("ORBITWISE_SITE")
MISSING = browsers.MISSING + [name for name in TOOLS if not BUILT and not importlib.util.find_spec(name)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
MATHJAX = "https://cdn.jsdelivr.net/npm/mathjax"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if BUILT:
        return Path(BUILT).resolve()
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs"), str(out)]
    finished = subprocess.run(build, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    driver = browsers.started(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


def opened(browser: Any, page: Path, width: int = 1280) -> Any:
    """The browser with all of a page there."""
    from selenium.webdriver.support.wait import WebDriverWait

    browsers.opened(browser, page, width)
    is_there = "return document.readyState === 'complete' && document.querySelector('article h1') !== null"
    WebDriverWait(browser, 60).until(
        lambda each: each.current_url == page.as_uri() and each.execute_script(is_there)
    )
    return browser


def follow(page: Any, text: str) -> None:
    """Click the first visible link with this text."""
    from selenium.webdriver.common.by import By

    links = [each for each in page.find_elements(By.PARTIAL_LINK_TEXT, text) if each.is_displayed()]
    assert links, f"{page.current_url} shows no link {text!r}"
    page.execute_script("arguments[0].click()", links[0])


def heading(page: Any) -> str:
    from selenium.webdriver.common.by import By

    return page.find_element(By.CSS_SELECTOR, "article h1").text.rstrip("#")


def words(page: Any) -> str:
    from selenium.webdriver.common.by import By

    return page.find_element(By.TAG_NAME, "article").text


def fetched(page: Any) -> set[str]:
    """What was asked for that is no file."""
    messages = [json.loads(each["message"])["message"] for each in page.get_log("performance")]
    addresses = {
        each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"
    }
    return {each for each in addresses if not each.startswith(("file:", "data:", "chrome"))}


def test_from_landing_to_tutorial_to_reference(browser, site):
    page = opened(browser, site / "index.html")
    assert heading(page) == "Orbitwise"
    assert "pip install orbitwise" in words(page)
    follow(page, "Tutorials")
    follow(page, "Images")
    assert heading(page) == "Images"
    assert "log evidence" in words(page)
    follow(page, "Reference")
    assert heading(page) == "Reference"
    follow(page, "InvariantGPClassifier")
    assert heading(page) == "InvariantGPClassifier"
    told = words(page)
    for expected in ("Parameters", "invariance", "Attributes", "orbit_", "Examples", "predict_proba"):
        assert expected in told
    assert "_frozen" not in told, "nothing private is shown"
    assert not fetched(page)


def test_search_finds_a_page(browser, site):
    from selenium.webdriver.support.wait import WebDriverWait

    page = opened(browser, site / "index.html")
    page.get((site / "search.html").as_uri() + "?q=inducing")
    results = "return [...document.querySelectorAll('#search-results li a')].map(each => each.textContent)"
    found = WebDriverWait(page, 30).until(lambda each: each.execute_script(results))
    assert any("SparseGPRegressor" in each or "inducing" in each.lower() for each in found)
    assert not fetched(page)


def test_every_picture_is_there(browser, site):
    page = opened(browser, site / "index.html")
    widths = "return [...document.images].map(each => each.naturalWidth)"
    assert min(page.execute_script(widths)) > 0


@pytest.mark.parametrize(
    "name", ["index", "guide/choosing", "tutorials/images", "reference/orbitwise.InvariantGPClassifier"]
)
def test_nothing_is_wider_than_a_narrow_screen(browser, site, name):
    page = opened(browser, site / f"{name}.html", width=390)
    widths = page.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1]


def test_formulas_alone_need_the_network(browser, site):
    page = opened(browser, site / "method.html")
    assert page.execute_script("return document.querySelectorAll('.math').length") > 50
    assert all(each.startswith(MATHJAX) for each in fetched(page))
