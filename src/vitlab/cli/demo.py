"""`vitlab demo`: the whole story on embedded digits, from patches to a report, and a trained model on photos."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, print_table, say

if TYPE_CHECKING:
    import numpy as np

    from vitlab.data.contract import DataSet, Split
    from vitlab.inspection.view import View
    from vitlab.models.contract import Model

    Pixels: TypeAlias = np.ndarray[Any, Any]

DESCRIPTION = """Train a small ViT from scratch on scikit-learn's digits, in two minutes on two cores.

It is tested on 400 digits that it never saw, and figures show where it looks. Then the packaged model, vitlab/tiny,
classifies two photos that come with scikit-learn, with figures of its attention. Everything stays in a run's folder,
with a report to open in a browser. `vitlab explore` shows the same in the browser, for your own photos.

Examples:
  vitlab demo
  vitlab demo --out runs/first --seed 1
  vitlab demo --epochs 5 --json
"""
SHOWN = 3  # digits whose attention is drawn
PHOTOS = ("china.jpg", "flower.jpg")
CREDIT = "Photos: danielbuechele and vultilion, CC BY 2.0 (creativecommons.org/licenses/by/2.0), from scikit-learn."
COLUMNS = 24  # characters of a photo that is drawn: two for each patch


@dataclass(frozen=True)
class Arguments:
    out: Path | None = None
    """The run's folder; by default runs/demo, with a number appended if that exists."""
    epochs: int | None = None
    """Passes over the training digits; by default the recipe's."""
    seed: int = 0
    """The seed of initialisation, order and augmentation."""
    json: bool = False
    """Print the figures as one JSON document, and no pictures."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab demo", description=DESCRIPTION)

    from vitlab.core.errors import Error

    if given.epochs is not None and given.epochs < 1:
        raise Error(f"--epochs must be at least 1, not {given.epochs}.")
    if given.out is not None and (given.out / "recipe.json").exists():
        raise Error(f"{given.out} holds a run already: choose another folder (--out).")
    if given.out is not None and given.out.exists() and not given.out.is_dir():
        raise Error(f"{given.out} is a file; give the name of a folder for the run (--out).")

    from vitlab import api
    from vitlab.data.open import open_data

    recipe = _recipe(given)
    data = open_data("digits")
    test = data.splits["test"]
    if not given.json:
        _show_shapes(recipe.model.source, _picture(test, 0))
        print(f"\n2. Training on {len(data.splits['train']):,} digits; a tenth of them is held out to watch progress\n")
    outcome = api.train(recipe, out=given.out, device="cpu", show=not given.json)
    if outcome.reason == "signal":
        from vitlab.training.run import resuming

        say(f"Stopped at step {outcome.step}; resume with: {resuming(outcome.folder)}")
        return outcome.status

    model = api.load(outcome.folder)
    accuracy = outcome.scores["test accuracy"]
    baseline = _regression_on_pixels(data)
    pictures = [_picture(test, i) for i in range(SHOWN)]
    api.inspect(model, pictures, out=outcome.folder / "inspect", data="digits")
    if given.json:
        print_json(
            {
                "run": str(outcome.folder),
                "steps": outcome.step,
                "test_images": len(test),
                "accuracy": accuracy,
                "accuracy_of_logistic_regression": baseline,
                "photos": [_plain(view) for view in _look_at_photos(outcome.folder / "photos")],
            }
        )
        return 0

    print(f"\n3. {len(test)} digits that it never saw\n")
    print_table(
        ["classifier", ">right"],
        [
            ["the ViT", f"{accuracy:.1%}"],
            ["logistic regression on the pixels", f"{baseline:.1%}"],
            ["always the same answer", f"{max(test.counts(10)) / len(test):.1%}"],
        ],
    )
    _show_attention(model, pictures)
    views = _look_at_photos(outcome.folder / "photos")
    _show_photos(views)
    _say_what_next(outcome.folder, photos=bool(views))
    return 0


def _recipe(given: Arguments) -> Any:
    import dataclasses

    from vitlab.recipes import find_recipe

    recipe = dataclasses.replace(find_recipe("digits"), name="demo", seed=given.seed)
    if given.epochs is None:
        return recipe
    return dataclasses.replace(
        recipe, schedule=dataclasses.replace(recipe.schedule, total=f"{given.epochs} epochs"), evaluate_every="1 epoch"
    )


def _picture(split: "Split", index: int) -> "Pixels":
    """A digit as bytes [8, 8, 3]."""
    from vitlab.data.decoding import decode

    return decode(split.images.read(index), split.images.where(index))


def _pixels(split: "Split") -> "Pixels":
    import numpy as np

    return np.stack([_picture(split, i)[..., 0].ravel() for i in range(len(split))]) / 255


def _regression_on_pixels(data: "DataSet") -> float:
    """How far one gets without a transformer."""
    from sklearn.linear_model import LogisticRegression

    train, test = data.splits["train"], data.splits["test"]
    classifier = LogisticRegression(max_iter=1000).fit(_pixels(train), train.labels)
    return float(classifier.score(_pixels(test), test.labels))


def _show_shapes(name: str, digit: "Pixels") -> None:
    import torch

    from vitlab import api
    from vitlab.cli.drawing import cut, picture, show

    model = api.create(name)
    patch = model.config.patch_size
    print(f"1. A digit through {name}, equation by equation (arXiv 2010.11929)\n")
    show(picture(_larger(digit)), picture(cut(_larger(digit), patch * 2)))
    with torch.inference_mode():
        embedded = model.embed(model.preprocess(digit))
        encoded = model.encode(embedded)
        pooled = model.pool(encoded)
        logits = model.head(pooled)
    count = embedded.patches.shape[1]
    rows = [
        ["the digit", "", _shape(digit)],
        [f"cut into patches of {patch} x {patch} pixels, flattened", "x_p", f"{count} x {patch * patch * 3}"],
        ["projected to the model's width", "x_p E", _shape(embedded.patches[0])],
        ["class token in front, positions added", "z_0  (1)", _shape(embedded.values[0])],
        [f"{model.config.depth} layers of attention and MLP", "z_L  (2, 3)", _shape(encoded.values[0])],
        ["the class token, normalised", "y  (4)", _shape(pooled[0])],
        ["a score for each digit, still zero: untrained", "head", _shape(logits[0])],
    ]
    print()
    print_table(["step", "symbol", ">shape"], rows)


def _show_attention(model: "Model", pictures: "list[Pixels]") -> None:
    import torch

    from vitlab import api
    from vitlab.cli.drawing import heat, picture, show
    from vitlab.inspection.capture import attention_of
    from vitlab.inspection.rollout import attention_rollout

    print("\n4. Where it looks: attention rollout to the class token, bright (9) for much, beside the digit\n")
    images = model.preprocess(pictures)
    attentions = torch.stack(list(attention_of(model, images).values()))
    grid = model.embed(images).grid
    flows = attention_rollout(attentions)[:, 0, 1:].reshape(len(pictures), *grid).numpy()
    for digit, flow, answer in zip(pictures, flows, api.predict(model, pictures, top=1), strict=True):
        doubled = flow.repeat(2, axis=0).repeat(2, axis=1)
        show(picture(_larger(digit)), heat(doubled, flow.min(), flow.max()))
        print(f"  it says {answer.classes[0].label} ({answer.classes[0].probability:.0%})\n")


def _look_at_photos(folder: Path) -> "Sequence[View]":
    """What the model in the package says of the photos, with figures in the folder; nothing where it is not there."""
    from importlib.resources import files

    from vitlab import api
    from vitlab.core.files import atomic_file
    from vitlab.weights import box

    if box.DEFAULT not in box.names():
        return ()
    for name in PHOTOS:
        with atomic_file(folder / name) as partial:
            partial.write_bytes(files("sklearn.datasets.images").joinpath(name).read_bytes())
    return api.inspect(images=[folder / name for name in PHOTOS], out=folder, device="cpu").findings.views


def _plain(view: "View") -> dict[str, Any]:
    classes = [{"label": label, "probability": share} for label, share in view.classes]
    return {"image": view.name, "classes": classes}


def _show_photos(views: "Sequence[View]") -> None:
    from vitlab.cli.drawing import heat, picture, show
    from vitlab.core.imagenet import words_of
    from vitlab.weights import box

    if not views:
        print(f"5. {box.DEFAULT}, the trained model of the package, is not in this installation: no photos are shown\n")
        return
    print(f"5. Two photos through {box.DEFAULT}, the trained model in the package, and where it looks\n")
    for view in views:
        step = max(view.pixels.shape[1] // COLUMNS, 1)
        small = view.pixels[step // 2 :: step, step // 2 :: step]
        maps = [] if view.rollout is None else [heat(view.rollout, view.rollout.min(), view.rollout.max())]
        show(picture(small), *maps)
        answers = ", ".join(f"{words_of(label)} ({share:.0%})" for label, share in view.classes)
        print(f"  {Path(view.name).name}: {answers}\n")
    print(f"  It tells 200 classes apart: what is none of them, it takes for one that looks like it.\n  {CREDIT}\n")


def _say_what_next(folder: Path, *, photos: bool) -> None:
    inside: list[tuple[Path | str, str]] = [
        (folder / "report.html", "the run: curves, mistakes, cost"),
        (folder / "inspect" / "inspect.html", "inside the model of the digits: filters, positions, attention"),
    ]
    if photos:
        inside += [
            (folder / "photos" / "inspect.html", "inside the model in the package, on the photos"),
            ("vitlab explore", "any picture through that model, step by step"),
        ]
    width = max(len(str(path)) for path, _ in inside)
    print("6. To look at in a browser\n")
    for path, what in inside:
        print(f"  {path!s:<{width}}  {what}")
    print("""
7. Next, with your own photos: a folder with one folder per class

  vitlab finetune photos/ --out runs/mine
  vitlab predict another.jpg --model runs/mine
  vitlab serve --model runs/mine""")


def _larger(pixels: "Pixels") -> "Pixels":
    """Twice as large, so that it can be seen."""
    return pixels.repeat(2, axis=0).repeat(2, axis=1)


def _shape(values: Any) -> str:
    return " x ".join(str(size) for size in values.shape)
