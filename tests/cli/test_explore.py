"""`vitlab explore`: the page with a picture, the browser that it opens, and its end."""

import signal
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from box_stand_in import boxed
from vitlab.cli import main, serve
from vitlab.models.vit import ViT
from vitlab.serving.static import File

__all__ = ["boxed"]  # a fixture


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a photo.png")
    return tmp_path / "a photo.png"


@pytest.mark.slow
def test_from_its_first_line_to_ctrl_c(boxed: ViT, photo: Path, tmp_path: Path) -> None:
    del boxed
    command = [sys.executable, "-m", "vitlab", "explore", str(photo), "--model", str(tmp_path / "box" / "tiny")]
    process = subprocess.Popen(
        [*command, "--no-browser"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Exploring tiny at http://127.0.0.1:"), line + process.communicate(timeout=30)[1]
        page = line.split()[3]
        assert page.endswith("/?picture")
        given = httpx.get(page.replace("/?picture", "/picture"))
        assert given.content == photo.read_bytes()
        assert given.headers["content-type"] == "image/png"
        assert "page.js" in httpx.get(page).text
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate(timeout=30)


class Started:
    """What explore handed to serve, and the pages that a browser was told to open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, browser: webbrowser.BaseBrowser | None) -> None:
        self.given: serve.Arguments | None = None
        self.picture: File | None = None
        self.pages: list[str] = []
        monkeypatch.setattr(serve, "run", self.run)
        monkeypatch.setattr(webbrowser, "get", lambda: self.browser(browser))

    def browser(self, browser: webbrowser.BaseBrowser | None) -> webbrowser.BaseBrowser:
        if browser is None:
            raise webbrowser.Error("no browser")
        browser.open = self.open  # pyright: ignore[reportAttributeAccessIssue]
        return browser

    def open(self, page: str) -> bool:
        self.pages.append(page)
        return True

    def run(self, given: serve.Arguments, tell: Callable[[str, str], None], picture: File | None) -> int:
        self.given, self.picture = given, picture
        before = set(threading.enumerate())
        tell("tiny", "http://127.0.0.1:1")
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
        return 0


def test_by_default_the_model_in_the_package_the_sample_and_a_free_port(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Started(monkeypatch, webbrowser.BackgroundBrowser("firefox"))
    assert main(["explore"]) == 0
    assert started.given is not None
    assert (started.given.model, started.given.port, started.given.host) == ("vitlab/tiny", 0, "127.0.0.1")
    assert started.picture is None
    assert started.pages == ["http://127.0.0.1:1/"]
    assert capsys.readouterr() == ("Exploring tiny at http://127.0.0.1:1/ (Ctrl-C ends)\n", "")


@pytest.mark.parametrize("browser", [webbrowser.GenericBrowser("lynx"), None], ids=["in the terminal", "none"])
def test_without_a_window_the_address_is_enough(
    browser: webbrowser.BaseBrowser | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Started(monkeypatch, browser)
    assert main(["explore"]) == 0
    assert started.pages == []
    assert capsys.readouterr().err == "vitlab: no browser could be started: open the address in one.\n"


def test_a_picture_that_browsers_do_not_show_becomes_one_that_they_do(
    photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(monkeypatch, webbrowser.BackgroundBrowser("firefox"))
    Image.open(photo).save(tmp_path / "scan.tiff")
    assert main(["explore", str(tmp_path / "scan.tiff"), "--no-browser"]) == 0
    assert started.pages == []
    assert started.picture is not None
    assert started.picture.headers["content-type"] == "image/png"
    (tmp_path / "shown.png").write_bytes(started.picture.content)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "shown.png")), np.asarray(Image.open(photo)))


def test_a_mistyped_picture_is_answered_with_the_nearest(photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", str(photo.with_name("a phto.png")), "--no-browser"]) == 2
    assert capsys.readouterr() == (
        "",
        f"vitlab: There is no file {photo.with_name('a phto.png')}. Did you mean {photo}?\n",
    )
