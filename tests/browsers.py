"""A headless Chromium, driven by selenium: what of it is missing here, how it starts and opens a page."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = [
    name
    for name, found in (
        ("selenium", importlib.util.find_spec("selenium")),
        ("chromium", BROWSER),
        ("chromedriver", DRIVER),
    )
    if not found
]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def started(profile: Path) -> Any:
    """A browser that keeps its profile in a folder, and a log of what it fetches."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


def opened(browser: Any, path: Path, width: int = 1280) -> Any:
    """The browser with the page open, `width` pixels wide, its logs emptied."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(path.as_uri())
    return browser
