"""A Chromium without a window, and the explorer page in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from vitlab.serving.static import FOLDER

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--window-size=1280,900", "--lang=en-US"),
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
SAMPLE = FOLDER / "sample.jpg"


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A browser with a profile of its own; the test is skipped where there is none to start."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no Chromium with its chromedriver on this machine (Debian: chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@dataclass(frozen=True)
class Page:
    """The explorer, open in a browser."""

    driver: webdriver.Chrome
    address: str

    def open(self, state: str = "lang=en") -> "Page":
        """Load it afresh and wait until the sample has gone through."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")  # what earlier pages said
        self.driver.get(f"{self.address}/#{state}")
        return self.settled("document.body.dataset.shown")

    def settled(self, condition: str = "true") -> "Page":
        """Wait until a JavaScript condition holds, no step waits for the service, and the page has been drawn."""
        self.until(f"({condition}) && !document.querySelector('[aria-busy=true]')")
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )
        return self.until("!document.querySelector('[aria-busy=true]')")

    def until(self, condition: str) -> "Page":
        WebDriverWait(self.driver, 30, 0.05).until(lambda driver: driver.execute_script(f"return Boolean({condition})"))
        return self

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, **features: str) -> None:
        """Media features, underscores for hyphens; none puts them back."""
        given = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": given})

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def value(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def words(self) -> dict[str, dict[str, str]]:
        """The table of strings, as the page has it."""
        script = "const done = arguments[0]; import(location.origin + '/words.js').then((m) => done(m.WORDS))"
        return self.driver.execute_async_script(script)

    def values(self, step: str) -> list[float]:
        """The number behind every place of a step's grid, in order."""
        cells = f"[...document.querySelectorAll('#{step} [role=gridcell]')]"
        return self.value(f"{cells}.map((cell) => Number(cell.dataset.value))")

    def chosen(self, step: str) -> int:
        (place,) = self.all(f"#{step} [role=gridcell].chosen")
        return int(place.get_attribute("data-place") or -1)

    def probabilities(self) -> dict[str, float]:
        lines = "[...document.querySelectorAll('#answer-bars li')]"
        script = f"{lines}.map((line) => [line.firstChild.textContent, line.dataset.probability])"
        return {label: float(share) for label, share in self.value(script)}

    def give(self, path: Path) -> "Page":
        """Choose a file, and wait until it has gone through."""
        before = int(self.value("document.body.dataset.shown"))
        self.find("#file").send_keys(str(path))
        return self.settled(f"Number(document.body.dataset.shown) > {before}")

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]
