"""The report in a real browser: a slider is moved and the page is read. Nothing is fetched."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orbitwise.report import write_report
from tests import browsers
from tests.browsers import MISSING

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    driver = browsers.started(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def report(turned, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_report(
        folder / "report.html",
        turned.model,
        turned.x,
        turned.y,
        X_test=turned.x_test,
        y_test=turned.y_test,
        title=HOSTILE,
        command=HOSTILE,
    )


def opened(browser: Any, path: Path, width: int = 1280) -> Any:
    """The browser with the report open and its picture drawn."""
    from selenium.webdriver.support.wait import WebDriverWait

    browsers.opened(browser, path, width)
    loaded = "return document.readyState === 'complete' && document.getElementById('picture').width > 0"
    WebDriverWait(browser, 60).until(lambda page: page.execute_script(loaded))
    return browser


def picture(browser: Any) -> str:
    return browser.execute_script("return document.getElementById('picture').toDataURL()")


def read(browser: Any, identity: str) -> str:
    return browser.execute_script(f"return document.getElementById('{identity}').textContent")


def test_moving_a_slider_changes_the_picture_and_the_prediction(browser, report):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    page = opened(browser, report)
    data = json.loads(read(page, "data"))
    slider = page.find_element(By.CSS_SELECTOR, "input[type=range]")
    before, summary = picture(page), read(page, "summary")
    assert "rotation 0° (inside the learned range)" in summary
    for _ in range(3):
        slider.send_keys(Keys.ARROW_RIGHT)
    assert read(page, "value-0") == data["moves"][0]["texts"][13]
    assert "(inside the learned range)" in read(page, "summary")
    inside = picture(page)
    assert inside != before
    slider.send_keys(Keys.END)
    assert "(outside the learned range)" in read(page, "summary")
    assert len({before, inside, picture(page)}) == 3
    assert slider.get_attribute("aria-valuetext") == data["moves"][0]["texts"][20]

    example = data["examples"][data["start"][0]]
    shares = [element.text for element in page.find_elements(By.CSS_SELECTOR, "#bars .share")]
    answers = example["answers"][0][20]
    assert [round(float(text.rstrip("\u00a0 %"))) for text in shares] == [
        pytest.approx(answer[0] / 10, abs=0.51) for answer in answers
    ]
    best = max(range(len(answers)), key=lambda i: answers[i][0])
    assert f"predicted {example['shown'][best]} with" in read(page, "summary")


def test_another_example_can_be_chosen(browser, report):
    from selenium.webdriver.common.by import By

    page = opened(browser, report)
    data = json.loads(read(page, "data"))
    before = picture(page)
    other = (data["start"][0] + 1) % len(data["examples"])
    button = page.find_elements(By.CSS_SELECTOR, ".choice")[other]
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert picture(page) != before
    assert read(page, "summary").startswith(data["examples"][other]["name"])


def test_nothing_is_fetched_nothing_fails_and_no_text_runs(browser, report):
    page = opened(browser, report)
    assert page.execute_script("return window.hacked === undefined")
    assert HOSTILE in page.title
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [
        each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"
    ]
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    assert sum(url.startswith("file:") for url in asked) == 1
    assert page.get_log("browser") == []


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(browser, report, width):
    page = opened(browser, report, width)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    wide = """
        return [...document.querySelectorAll('main *')]
            .filter((each) => each.getBoundingClientRect().right > window.innerWidth + 1)
            .map((each) => each.outerHTML.slice(0, 80));
    """
    assert page.execute_script(wide) == []
    tall = "return [...document.images].every((each) => each.complete && each.naturalWidth > 0)"
    assert page.execute_script(tall)
