"""Model cards: the README.md of a native folder, for people, with a head that the hub reads."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from vitlab.core.config import from_dict, to_dict
from vitlab.core.errors import CheckpointError, Error
from vitlab.core.files import atomic_file
from vitlab.core.preprocess import Preprocess
from vitlab.core.reading import check_regular
from vitlab.core.record import VERSION, read_json
from vitlab.core.words import one_line
from vitlab.models.contract import Model
from vitlab.models.counts import count_parameters
from vitlab.models.create import empty_model, family_name, family_of
from vitlab.weights import box

NAME = "README.md"
LICENSE = "LICENSE"
MARK = "<!-- Written by vitlab, and written again with the model. Remove this line to keep a text of your own. -->"
CLASSES_SHOWN = 20
LONGEST_LICENSE = 1 << 20  # bytes
LONGEST_TERMS = 1000  # characters of a licence that a card repeats


@dataclass(frozen=True)
class RunFacts:
    """What a run's files say of the model in it; `result` is empty while it is under way."""

    data: str
    recipe: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def scores(self) -> dict[str, float]:
        """What was measured, by the names that the run has for it."""
        named = {name: value for name, value in self.result.items() if name.startswith(("test ", "best val ", "val "))}
        kept = {name: value for name, value in named.items() if name not in ("test count", "test score")}
        return {name: float(value) for name, value in kept.items() if isinstance(value, int | float)}


def run_facts(folder: Path) -> RunFacts | None:
    """The facts of the run in a folder, or None where there is no run or its files cannot be read."""
    try:
        result = read_json(folder / "result.json") if (folder / "result.json").exists() else {}
        return RunFacts(str(read_json(folder / "data.json").get("name")), read_json(folder / "recipe.json"), result)
    except Error:
        return None


def model_card(
    model: Model, name: str, *, run: RunFacts | None = None, license: str | None = None, source: str | None = None
) -> str:
    """The card's whole text; `source` is where the model can be loaded from, by default the folder's name.

    `license` is the hub's word for a licence, where the model's own, which lies beside the card, has one.
    """
    classes = model.config.num_classes
    return "\n".join(
        [
            *_metadata(model, name, run, license),
            "",
            MARK,
            "",
            f"# {plain(name)}",
            "",
            *_what(model),
            *_section("How to use it", _usage(source or name, model)),
            *([] if run is None or not run.scores else _section("Scores", _scores(run))),
            *(_section("Classes", _classes(model.labels, classes)) if classes else []),
            *_section("Preprocessing", _preprocessing(model.preprocess)),
            *_section("Architecture", _architecture(model)),
            *([] if run is None else _section("Training", _training(run))),
            *([] if model.license is None else _section("Licence", _license(model.license))),
        ]
    )


def card_of(folder: Path, name: str, *, license: str | None = None, source: str | None = None) -> str:
    """The card of a native folder, from its files and those of the run that it lies in."""
    settings = read_json(folder / "config.json")
    config = from_dict(family_of(settings["family"]).config, settings["config"], where=str(folder / "config.json"))
    preprocess = from_dict(Preprocess, read_json(folder / "preprocess.json"), where=str(folder / "preprocess.json"))
    model = empty_model(config, preprocess)
    if (folder / "labels.json").exists():
        said = read_json(folder / "labels.json")
        model.labels, model.multi_label = tuple(said["labels"]), said.get("multi_label") is True
    model.license = license_of(folder)
    return model_card(model, name, run=run_facts(folder.parent), license=license, source=source)


def renew_card(run: Path) -> None:
    """Write the card of a run's model again, now that the run's scores are known; a user's own text is left."""
    folder = run / "model"
    if (folder / "config.json").exists() and own_text(folder) is None:
        with atomic_file(folder / NAME) as partial:
            partial.write_text(card_of(folder, run.resolve().name), encoding="utf-8")


def own_text(folder: Path) -> str | None:
    """The README.md of a folder where a user wrote it, or took it over."""
    try:
        check_regular(folder / NAME)
        text = (folder / NAME).read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Error(f"{folder / NAME}: cannot be read ({error.strerror or error}).") from error
    return None if MARK in text else text


def license_of(folder: Path) -> str | None:
    """The text of the LICENSE in a folder, where there is one."""
    path = folder / LICENSE
    try:
        check_regular(path)
        if path.stat().st_size > LONGEST_LICENSE:
            raise CheckpointError(f"{path}: no licence is so long; remove it.")
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error}).") from error


def write(folder: Path, text: str) -> None:
    """A card's text; what was read from a file that is not UTF-8 becomes the same bytes again."""
    (folder / NAME).write_text(text, encoding="utf-8", errors="surrogateescape")


def plain(text: str) -> str:
    """A text that Markdown and HTML take as it is, in one line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", line)


def _metadata(model: Model, name: str, run: RunFacts | None, license: str | None) -> list[str]:
    """The head in YAML, by which the hub lists and filters models."""
    task = "image-classification" if model.config.num_classes else "image-feature-extraction"
    task = "image-segmentation" if model.is_dense else task
    task = task if model.takes_images else "unconditional-image-generation"
    accuracy = None if run is None else run.scores.get("test accuracy")
    scored: dict[str, Any] = {}
    if run is not None and accuracy is not None:
        result = EvalResult(
            task_type=task,
            dataset_type=run.data,
            dataset_name=run.data,
            dataset_split="test",
            metric_type="accuracy",
            metric_value=accuracy,
            metric_name="test accuracy",
        )
        scored = {"model_name": name, "eval_results": [result]}
    terms: dict[str, Any] = {"license": license or "unknown"}
    if model.license is not None and license is None:  # as the hub has it for a licence that has no name there
        terms = {"license": "other", "license_name": "see-license", "license_link": LICENSE}
    data = ModelCardData(
        library_name="vitlab",
        pipeline_tag=task,
        tags=["vitlab", task, family_name(model.config)],
        **terms,
        **scored,
    )
    return ["---", data.to_yaml(), "---"]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *lines, ""]


def _what(model: Model) -> list[str]:
    height, width = model.config.image_size
    classes, family = model.config.num_classes, family_of(family_name(model.config)).summary
    does = "turns pictures into feature vectors" if model.takes_images else "makes pictures from noise"
    if classes:
        kinds = f"{classes:,} classes"
        does = f"says which of {kinds} are in a picture" if model.multi_label else f"tells {kinds} of pictures apart"
        does = f"says which of {kinds} each pixel of a picture shows" if model.is_dense else does
    return [
        (
            f"A {family} with {count_parameters(model):,} parameters that {does}, at {height} x {width} px. It is a"
            f" native folder of vitlab {VERSION}: weights in `model.safetensors`, everything else in JSON."
        ),
        "",
    ]


def _architecture(model: Model) -> list[str]:
    """The fields of the configuration that say something: sizes, and what is unlike the family's defaults."""
    config = model.config
    defaults = {item.name: item.default for item in dataclasses.fields(config)}
    rows = [
        (name, value)
        for name, value in to_dict(config).items()
        if getattr(config, name) != defaults[name] or (isinstance(value, int) and not isinstance(value, bool))
    ]
    return [
        f"Family `{family_name(config)}`; what is not named here is as the family's defaults have it.",
        "",
        "| field | value |",
        "|-|-|",
        *(f"| {plain(name)} | {plain(json.dumps(value, ensure_ascii=False))} |" for name, value in rows),
    ]


def _classes(labels: Sequence[str] | None, count: int) -> list[str]:
    if labels is None:
        return [f"{count:,}, without names."]
    shown = ", ".join(plain(label) for label in labels[:CLASSES_SHOWN])
    more = f", and {count - CLASSES_SHOWN:,} more in `labels.json`" if count > CLASSES_SHOWN else ""
    return [f"{count:,}: {shown}{more}."]


def _preprocessing(spec: Preprocess) -> list[str]:
    height, width = spec.size
    how = (
        f"resized to {height} x {width} px whatever their aspect"
        if spec.resize == "squash"
        else f"resized to a shorter side of {spec.shortest_edge or min(spec.size)} px, cropped to {height} x {width} px"
    )
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (spec.mean, spec.std))
    return [
        f"Pictures are {how} ({spec.interpolation}), and normalised: (x / 255 - mean) / std with mean ({mean}) and std"
        f" ({std}). `model.preprocess` does this."
    ]


def _training(run: RunFacts) -> list[str]:
    facts = {
        "data": run.data,
        "recipe": run.recipe.get("name"),
        "started from": _short(_within(run.recipe, "model", "source")),
        "images per step": run.recipe.get("batch_size"),
        "steps": run.result.get("step"),
        "images seen": run.result.get("images_seen"),
    }
    recipe = json.dumps(_without_paths(run.recipe), indent=2, ensure_ascii=False)
    return [
        "| | |",
        "|-|-|",
        *(f"| {name} | {plain(str(value))} |" for name, value in facts.items() if value is not None),
        "",
        "The whole recipe:",
        "",
        *(f"    {one_line(line)}" for line in recipe.split("\n")),
    ]


def _license(text: str) -> list[str]:
    """The first paragraph, which says the terms in short."""
    first = plain(text.strip().split("\n\n")[0])
    terms = first if len(first) <= LONGEST_TERMS else f"{first[: LONGEST_TERMS - 1]}…"
    return [
        *([terms, ""] if terms else []),
        f"The whole text is in `{LICENSE}`; it goes with models tuned from this one.",
    ]


def _scores(run: RunFacts) -> list[str]:
    count = run.result.get("test count")
    over = f" Test figures are over {int(count):,} images." if isinstance(count, int | float) else ""
    return [
        "| measure | value |",
        "|-|-|",
        *(f"| {plain(name)} | {value:.4g} |" for name, value in run.scores.items()),
        "",
        f"Of the weights in this folder, on {plain(run.data)}.{over}",
    ]


def _usage(source: str, model: Model) -> list[str]:
    name = one_line(json.dumps(source, ensure_ascii=False))
    lines = [f"    model = vitlab.load({name})"]
    if not model.takes_images:
        lines.append("    pictures = vitlab.sample(model, num=64, seed=0)")
    elif model.config.num_classes:
        lines.append('    print(vitlab.predict(model, "photo.jpg"))')
    else:
        lines.append("    features = model.pool(model.encode(model.embed(model.preprocess([photo]))))")
    return ["    import vitlab", "", *lines]


def _within(recipe: Mapping[str, Any], *names: str) -> Any:
    value: Any = recipe
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _without_paths(value: Any) -> Any:
    """The same with the last part of each path of this machine: what is published should not show its folders."""
    if isinstance(value, Mapping):
        return {name: _without_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    return _short(value)


def _short(value: Any) -> Any:
    is_path = isinstance(value, str) and ("/" in value or "\\" in value)
    is_path = is_path and not value.startswith("hf-hub:") and value not in (box.DEFAULT, *box.names())
    return re.split(r"[/\\]+", value.rstrip("/\\"))[-1] if is_path else value
