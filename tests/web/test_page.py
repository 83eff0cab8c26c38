"""The explorer page in a real browser, beside the model, the service's own answers and NumPy."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import vitlab
from vitlab.core.pictures import class_color
from vitlab.core.preprocess import Interpolation, Preprocess, Resize
from vitlab.models.bit import BiT, BiTConfig
from vitlab.models.contract import Model
from vitlab.serving.limits import Limits
from vitlab.serving.static import FOLDER, File
from web.browser import SAMPLE, Page, chromium
from web.hostile import picture, saved
from web.live import Live, serving, small_model

pytestmark = pytest.mark.web

ROWS, COLUMNS = 6, 4
STEPS = ("cut", "embed", "position", "tokens", "attention", "answer")


@pytest.fixture(scope="module")
def visitor() -> Iterator[Page]:
    with chromium() as driver:
        driver.set_script_timeout(30)
        yield Page(driver, "about:blank")


@pytest.fixture
def page(live: Live, visitor: Page) -> Page:
    visitor.size(1280, 900)
    visitor.prefer(prefers_reduced_motion="reduce")  # nothing is underway when it is looked at
    return Page(visitor.driver, live.address).open()


def of(model: Model, image: Image.Image | Path, top: int = 5) -> dict[str, float]:
    (answer,) = vitlab.predict(model, image, top=top)
    return {scored.label: scored.probability for scored in answer.classes}


def cosines(vectors: torch.Tensor) -> np.ndarray:
    values = vectors.detach().double().numpy()
    unit = values / np.linalg.norm(values, axis=-1, keepdims=True)
    return unit @ unit.T


def test_it_loads_from_here_alone_and_without_complaint(page: Page) -> None:
    assert page.complaints() == []
    asked = page.value("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert len(asked) > 10
    assert all(name.startswith((page.address, f"blob:{page.address}")) for name in asked)
    # a guard against a slow machine would fail by chance: the time is told, not asserted
    loaded = page.value("performance.getEntriesByType('navigation')[0].loadEventEnd")
    done = page.value("Math.max(...performance.getEntriesByType('resource').map((entry) => entry.responseEnd))")
    print(f"\nfirst load {loaded:.0f} ms; everything there after {done:.0f} ms")


def test_its_files_refer_to_nothing_outside() -> None:
    for file in FOLDER.rglob("*"):
        if file.suffix in (".html", ".css", ".js"):
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text), file.name
            assert "@import" not in text
            assert not re.search(r"<[^>]+\s(style|on\w+)=|innerHTML|eval\(", text), file.name
    assert SAMPLE.stat().st_size < 60_000
    assert "creativecommons.org/licenses/by/2.0" in (FOLDER / "words.js").read_text(encoding="utf-8")


def test_the_sample_s_probabilities_are_those_of_predict(page: Page, live: Live) -> None:
    assert page.probabilities() == pytest.approx(of(live.model, SAMPLE), abs=1e-6)
    assert list(page.probabilities()) == list(of(live.model, SAMPLE))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("resize", ["squash", "shortest"])
def test_the_view_is_what_the_model_sees(
    visitor: Page, tmp_path: Path, resize: Resize, interpolation: Interpolation
) -> None:
    model = small_model()
    edge = 20 if resize == "shortest" else None
    model.preprocess = Preprocess(size=(24, 16), resize=resize, shortest_edge=edge, interpolation=interpolation)
    Image.open(SAMPLE).crop((40, 0, 300, 384)).save(tmp_path / "tall.png")
    with serving(model) as live:
        page = Page(visitor.driver, live.address).open().give(tmp_path / "tall.png")
        script = """
            const view = document.querySelector("#seen img"), canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [view.naturalWidth, view.naturalHeight];
            canvas.getContext("2d").drawImage(view, 0, 0);
            return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
        """
        pixels = np.reshape(page.driver.execute_script(script), (24, 16, 4))
    expected = np.asarray(model.preprocess.picture(Image.open(tmp_path / "tall.png")), np.int64)
    assert np.abs(pixels[..., :3] - expected).max() <= 2


def test_a_chosen_a_pasted_and_a_dropped_picture(page: Page, live: Live, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.png" for name in ("chosen", "paste", "drop")}
    for turn, file in enumerate(files.values()):
        picture(40 + turn, 30).rotate(90 * turn, expand=True).save(file)
    page.give(files["chosen"])
    assert page.probabilities() == pytest.approx(of(live.model, files["chosen"]), abs=1e-6)
    for name in ("paste", "drop"):
        before = page.value("Number(document.body.dataset.shown)")
        page.driver.execute_script(
            """
            const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], "x.png", { type: "image/png" }));
            const kind = arguments[1] === "paste" ? ClipboardEvent : DragEvent;
            const init = { bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data };
            document.body.dispatchEvent(new kind(arguments[1], init));
            """,
            base64.b64encode(files[name].read_bytes()).decode(),
            name,
        )
        page.settled(f"Number(document.body.dataset.shown) > {before}")
        assert page.probabilities() == pytest.approx(of(live.model, files[name]), abs=1e-6)
    assert page.complaints() == []


def test_the_picture_that_it_was_opened_with_comes_first(visitor: Page, tmp_path: Path) -> None:
    picture(50, 40).save(tmp_path / "first.png")
    with serving(small_model(), picture=File((tmp_path / "first.png").read_bytes(), "first.png")) as live:
        page = Page(visitor.driver, f"{live.address}/?picture")
        page.driver.get(f"{page.address}#lang=en")
        page.settled("document.body.dataset.shown")
        assert page.probabilities() == pytest.approx(of(live.model, tmp_path / "first.png"), abs=1e-6)
        assert page.complaints() == []
        page.find("#sample").click()
        page.settled("Number(document.body.dataset.shown) > 1")
        assert page.probabilities() == pytest.approx(of(live.model, SAMPLE), abs=1e-6)


def test_a_large_picture_goes_as_a_smaller_copy(page: Page, live: Live, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1200, 1800, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png", compress_level=0)  # over the service's limits
    page.give(tmp_path / "large.png")
    assert page.find("#copied").is_displayed()
    assert page.probabilities() == pytest.approx(of(live.model, Image.fromarray(noise)), abs=0.05)


def test_pointing_at_a_position_lights_up_its_neighbours(page: Page, live: Live) -> None:
    positions = live.model.taps.positions
    assert positions is not None
    expected = cosines(positions())
    for place in (0, 13, 23):
        cell = page.all("#position [role=gridcell]")[place]
        page.driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", cell)
        ActionChains(page.driver, duration=0).move_to_element(cell).perform()
        page.settled(f"document.querySelector('#position .chosen').dataset.place == {place}")
        np.testing.assert_allclose(page.values("position"), expected[place], atol=1e-4)
        assert {step: page.chosen(step) for step in STEPS} == dict.fromkeys(STEPS, place)


def test_what_a_model_has_not_learned_is_said_below_its_figures(page: Page) -> None:
    """The service's model has random weights: its filters are noise, and near positions no more alike than far ones."""
    assert "hardly more alike than far ones" in page.find("#position .note").text
    assert "of them are smooth; the others look more like noise." in page.find("#embed .note").text


def test_arrow_keys_move_the_patch_whose_attention_is_shown(page: Page, live: Live) -> None:
    start = page.chosen("attention")
    row, column = divmod(start, COLUMNS)
    page.find("#attention .chosen").click()
    walk = [(Keys.ARROW_UP, row - 1, column), (Keys.ARROW_LEFT, row - 1, column - 1), (Keys.HOME, row - 1, 0)]
    walk += [(Keys.ARROW_LEFT, row - 1, 0), (Keys.END, row - 1, COLUMNS - 1), (Keys.ARROW_DOWN, row, COLUMNS - 1)]
    query = "/v1/attention?layer=3&head=1&rows=all&rollout=false"
    heads = live.post(query, SAMPLE.read_bytes()).json()["images"][0]["heads"][0]
    for key, to_row, to_column in walk:
        ActionChains(page.driver, duration=0).send_keys(key).perform()
        place = to_row * COLUMNS + to_column
        page.settled(f"document.activeElement.dataset.place == {place}")
        assert page.chosen("attention") == page.chosen("cut") == place
        assert page.values("attention") == pytest.approx(heads[1 + place][1:], abs=1e-6)  # it may share a batch
    (stop,) = page.all("#attention [role=gridcell][tabindex='0']")  # one tab stop, wherever it is
    assert stop == page.driver.switch_to.active_element
    assert page.find("#attention .note").text == page.find("#spoken").get_attribute("textContent")


@pytest.mark.parametrize(("come", "patch"), [("patch", 5), ("patch", 9), ("output", 5)])
def test_the_heads_are_seen_from_where_the_map_is(page: Page, live: Live, come: str, patch: int) -> None:
    page.open(f"lang=en&layer=1&head=2&from={come}&patch={patch}")
    rows = "all" if come == "patch" else "output"
    path = f"/v1/attention?layer=1&rollout=false&rows={rows}"
    heads = live.post(path, SAMPLE.read_bytes()).json()["images"][0]["heads"]
    canvases = page.value(
        "[...document.querySelectorAll('#attention-heads canvas')]"
        ".map((c) => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data])"
    )
    assert len(canvases) == len(heads)
    for drawn, head in zip(canvases, heads, strict=True):
        most = int(np.argmax(head[1 + patch][1:] if come == "patch" else np.ravel(head)))
        assert np.reshape(drawn, (-1, 4))[most].tolist() == [0xFD, 0xE7, 0x25, 255]  # the end of viridis
    words = "from the chosen patch" if come == "patch" else "from the answer"
    assert words in (page.find("#attention-heads").get_attribute("aria-label") or "")


def test_sliders_and_rollout(page: Page, live: Live) -> None:
    page.find("#attention-layer").send_keys(Keys.HOME)
    page.find("#attention-head").send_keys(Keys.ARROW_RIGHT)
    page.find("input[value=output]").click()
    page.settled("document.querySelector('#attention-layer').value == 1")
    sample = SAMPLE.read_bytes()
    heads = live.post("/v1/attention?layer=1&rollout=false", sample).json()["images"][0]["heads"]
    assert page.values("attention") == np.ravel(heads[1]).tolist()
    assert [button.get_attribute("aria-pressed") for button in page.all("#attention-heads button")] == ["false", "true"]
    page.until("location.hash.includes('layer=1') && location.hash.includes('head=2')")
    page.find("input[value=rollout]").click()
    page.settled("document.querySelector('#attention-layer').disabled")
    (image,) = live.post("/v1/attention", sample).json()["images"]
    assert page.values("attention") == np.ravel(image["rollout"]).tolist()
    page.open("lang=en&layer=1&head=2&from=output&patch=5")  # as someone else would who was sent the address
    assert page.values("attention") == np.ravel(heads[1]).tolist()
    assert page.chosen("answer") == 5


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_tokens_through_the_layers(page: Page, live: Live, layer: int) -> None:
    page.open(f"lang=en&after={layer}&patch=7")
    with torch.inference_mode():
        tokens = live.model.features(live.model.preprocess(Image.open(SAMPLE)))[layer]
    np.testing.assert_allclose(page.values("tokens"), cosines(tokens.patches[0])[7], atol=1e-4)
    assert page.value("document.getElementById('tokens-layer').value") == str(layer)


def test_covering_patches_changes_the_answer(page: Page, live: Live) -> None:
    page.find("#answer .chosen").click()
    start = page.chosen("answer")
    keys = ActionChains(page.driver, duration=0).key_down(Keys.CONTROL).send_keys(Keys.HOME).key_up(Keys.CONTROL)
    for _ in range(ROWS - 1):
        keys.send_keys(Keys.ENTER, Keys.ARROW_RIGHT, Keys.SPACE, Keys.ARROW_DOWN, Keys.ARROW_LEFT)
    keys.perform()
    page.settled(
        "document.querySelectorAll('#answer .covered').length > 10 && !document.querySelector('.bar b').hidden"
    )
    page.until("document.querySelector('#answer .note').textContent.startsWith('11 ')")
    hidden = {start, *(row * COLUMNS + column for row in range(ROWS - 1) for column in (0, 1))}
    shown = {int(cell.get_attribute("data-place") or -1) for cell in page.all("#answer .covered")}
    assert shown == hidden
    image = Image.open(SAMPLE)
    height, width = image.height // ROWS, image.width // COLUMNS
    for row, column in (divmod(place, COLUMNS) for place in hidden):
        image.paste((128, 128, 128), (column * width, row * height, (column + 1) * width, (row + 1) * height))
    plain = of(live.model, SAMPLE)
    assert page.probabilities() == pytest.approx(of(live.model, image), abs=2e-3)  # decoders round differently
    assert page.probabilities() != pytest.approx(plain, abs=2e-2)
    page.find("#answer-clear").click()
    page.settled("document.querySelector('.bar b').hidden")
    assert page.probabilities() == pytest.approx(plain, abs=1e-6)


def test_both_languages_say_everything(page: Page) -> None:
    words = page.words()
    assert set(words) == {"en", "ko"}
    assert set(words["en"]) == set(words["ko"])
    for key, text in words["en"].items():
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", words["ko"][key])), key
        assert words["ko"][key] != text or not re.search("[a-z]", re.sub(r"\{\w+\}", "", text)), key
    files = [file for file in FOLDER.rglob("*") if file.suffix in (".html", ".js") and file.name != "words.js"]
    used = "".join(file.read_text(encoding="utf-8") for file in files)
    built = ("error.", "answer.text.", "attention.output.")  # from a code or a field
    assert [key for key in words["en"] if f'"{key}"' not in used and not key.startswith(built)] == []

    def shown() -> dict[str, str]:
        return dict(page.value("[...document.querySelectorAll('[data-t]')].map((e) => [e.dataset.t, e.textContent])"))

    notes = [note.text for note in page.all(".note")]
    assert shown() == {key: words["en"][key] for key in shown()}
    page.find("button[data-lang=ko]").click()
    page.settled("document.documentElement.lang == 'ko'")
    assert shown() == {key: words["ko"][key] for key in shown()}
    assert words["ko"]["page.title"] in page.driver.title
    assert all(re.search("[가-힣]", note.text) for note in page.all(".note") if note.text and note.text not in notes)
    labels = page.value("[...document.querySelectorAll('[role=gridcell], [data-t-label]')].map((e) => e.ariaLabel)")
    assert all(re.search("[가-힣]", label) for label in labels)
    page.until("location.hash.includes('lang=ko')")
    assert page.complaints() == []


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_nothing_sticks_out_on_a_phone(page: Page, lang: str) -> None:
    for width in (320, 390, 768):
        page.size(width, 800)
        if width == 320:
            page.open(f"lang={lang}")
        page.settled(f"innerWidth == {width}")
        assert page.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        columns = page.value("getComputedStyle(document.querySelector('#attention')).gridTemplateColumns").split()
        assert len(columns) == 1


def test_everything_has_a_name(page: Page) -> None:
    unnamed = page.value(
        """[...document.querySelectorAll('button, input, a, [role=grid], [role=gridcell], [role=img], [role=group]')]
        .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    assert page.value("[...document.images].filter((e) => !e.hasAttribute('alt')).length") == 0
    assert page.value("[...document.querySelectorAll('img.view')].every((e) => e.alt)")
    assert page.find("#spoken").get_attribute("aria-live") == "polite"
    assert page.find("#error").get_attribute("role") == "alert"
    ids = page.value("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    levels = page.value("[...document.querySelectorAll('h1, h2, h3')].map((e) => e.tagName)")
    assert levels == ["H1"] + ["H2"] * len(STEPS)


def test_dark_and_still_where_that_is_preferred(page: Page) -> None:
    def ground() -> list[int]:
        color = page.value("getComputedStyle(document.body).backgroundColor")
        return [int(part) for part in re.findall(r"\d+", color)][:3]

    page.prefer()
    page.open()
    page.driver.execute_script("document.getElementById('cut').scrollIntoView()")
    page.until("document.querySelector('#cut .frame').classList.contains('apart')")  # cut when it is seen
    moving = "getComputedStyle(document.querySelector('#cut .grid')).transitionDuration"
    assert min(ground()) > 200
    assert page.value(moving) == "0.7s"
    page.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    assert max(ground()) < 50
    assert page.value(moving) == "0s"


def test_a_file_that_is_no_picture(page: Page, live: Live, tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("not a picture")
    page.find("#file").send_keys(str(tmp_path / "notes.png"))
    page.until("!document.getElementById('error').hidden")
    assert "cannot be shown as a picture" in page.find("#error").text
    page.find("button[data-lang=ko]").click()
    assert "그림으로 열 수 없습니다" in page.find("#error").text
    assert page.probabilities() == pytest.approx(of(live.model, SAMPLE), abs=1e-6)  # what was there stays
    (tmp_path / "good.png").write_bytes(saved(picture(), "PNG"))
    page.give(tmp_path / "good.png")
    assert not page.find("#error").is_displayed()


def test_a_token_is_asked_for(visitor: Page) -> None:
    with serving(small_model(), token="s3cret") as live:
        page = Page(visitor.driver, live.address)
        page.driver.get(f"{live.address}/#lang=en")
        page.until("!document.getElementById('token').hidden")
        for given in ("wrong", "s3cret"):
            assert "token" in page.find("#error").text
            page.find("#token-text").clear()
            page.find("#token-text").send_keys(given, Keys.ENTER)
            page.until("document.body.dataset.shown || !document.getElementById('error').hidden")
        page.settled("document.body.dataset.shown")
        assert page.probabilities() == pytest.approx(of(live.model, SAMPLE), abs=1e-6)
        assert not page.find("#token").is_displayed()


def test_a_service_that_is_gone(visitor: Page) -> None:
    with serving(small_model()) as live:
        page = Page(visitor.driver, live.address).open()
    page.find("#attention-layer").send_keys(Keys.HOME)
    page.until("document.querySelector('#attention .note').textContent.includes('does not answer')")


def absent(page: Page) -> list[str]:
    return [section.get_attribute("id") or "" for section in page.all(".step.is-absent")]


def test_a_model_that_averages_its_patches(visitor: Page) -> None:
    model = small_model(class_token=False, pool="mean", heads=1, positions="none")
    with serving(model, Limits(attention_values=24 * 25 - 1)) as live:  # too few for tokens
        page = Page(visitor.driver, live.address).open()
        assert absent(page) == ["position", "tokens"]
        assert "average" in page.find("#attention-output").text
        assert page.find("#attention-head").get_property("disabled")
        path = "/v1/attention?layer=3&head=1&rows=all&rollout=false"
        rows = live.post(path, SAMPLE.read_bytes()).json()["images"][0]["heads"][0]
        assert page.values("attention") == rows[page.chosen("attention")]
        assert page.probabilities() == pytest.approx(of(model, SAMPLE), abs=1e-6)
        assert page.complaints() == []


def test_a_masks_classes_are_in_order_and_in_their_colours(visitor: Page) -> None:
    """Also where they are called by numbers, which an object in JavaScript puts in their own order."""
    model = small_model(head="patches")
    model.task, model.labels = "segmentation", ("10", "11", "12", "13", "14")
    with serving(model) as live:
        page = Page(visitor.driver, live.address).open()
        shares = live.post("/v1/predict", SAMPLE.read_bytes()).json()["predictions"][0]["shares"]
        assert list(shares) != sorted(shares)
        assert list(page.probabilities().items()) == list(shares.items())
        names = "[...document.querySelectorAll('#answer-bars li span:first-child')]"
        shown = page.value(f"{names}.map((name) => getComputedStyle(name, '::before').backgroundColor)")
        assert shown == [f"rgb{class_color(int(name) - 10)}" for name in shares]
        assert page.complaints() == []


def test_models_without_attention(visitor: Page) -> None:
    config = BiTConfig(image_size=(64, 64), layers=(1, 1), width=32, num_classes=5)
    model = BiT(config).eval()
    model.initialize()
    with serving(model) as live:
        page = Page(visitor.driver, live.address).open()
        assert absent(page) == ["cut", "position", "attention"]
        for step in absent(page):
            assert page.find(f"#{step} .absent").is_displayed()
            assert page.all(f"#{step} .present") == [e for e in page.all(f"#{step} .present") if not e.is_displayed()]
        assert len(page.all("#embed-filters li")) == 28
        with torch.inference_mode():
            tokens = model.features(model.preprocess(Image.open(SAMPLE)))[-1]
        np.testing.assert_allclose(page.values("tokens"), cosines(tokens.patches[0])[page.chosen("tokens")], atol=1e-4)
        assert page.complaints() == []
    with serving(small_model(depth=0, num_classes=0)) as live:
        page = Page(visitor.driver, live.address).open()
        assert absent(page) == ["attention", "answer"]
        assert "16" in page.find("#answer-absent").text
