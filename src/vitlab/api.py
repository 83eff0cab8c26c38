"""What the verbs do, as functions. Nothing here prints."""

import contextlib
import dataclasses
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from vitlab.core.devices import choose_device
from vitlab.core.errors import ConfigError, DataError, Error
from vitlab.core.files import free_path
from vitlab.core.progress import stage
from vitlab.core.registry import permit
from vitlab.data.decoding import Input, StrPath, find_inputs
from vitlab.inference import predict as prediction
from vitlab.inference.predict import Prediction, Predictions
from vitlab.models.contract import Model
from vitlab.models.create import create
from vitlab.models.zoo.rows import ZooRow, list_models
from vitlab.tasks import task_for
from vitlab.tasks.contract import Answer, Scored
from vitlab.weights.box import DEFAULT
from vitlab.weights.card import renew_card
from vitlab.weights.load import load, read_configuration, save

if TYPE_CHECKING:  # what only training and measuring need is imported when something is trained or measured
    from torch import nn

    from vitlab.data.contract import DataSet, Split
    from vitlab.evaluation.contract import Result
    from vitlab.evaluation.examination import Examination, Stage
    from vitlab.exporting.int8 import Quantized
    from vitlab.exporting.program import Exported, Precision, Sizes
    from vitlab.inference.embed import Embedding
    from vitlab.inspection.gather import Inspection, Predict
    from vitlab.objectives.contract import Objective
    from vitlab.reporting.make import Plan, Report
    from vitlab.reporting.purpose import Purpose
    from vitlab.training.finish import RunOutcome
    from vitlab.training.plan import Given
    from vitlab.training.recipe import Recipe
    from vitlab.weights.push import Pushed

__all__ = [
    "Answer",
    "Prediction",
    "Predictions",
    "Scored",
    "ZooRow",
    "create",
    "embed",
    "evaluate",
    "examine_data",
    "export",
    "export_int8",
    "finetune",
    "inspect",
    "list_models",
    "load",
    "predict",
    "push",
    "report",
    "resume",
    "save",
    "train",
]

log = logging.getLogger("vitlab")


def predict(
    model: Model | StrPath = DEFAULT,
    images: Input | Iterable[Input] | None = None,
    top: int = 5,
    *,
    task: str | None = None,
    batch_size: int = 32,
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Predictions:
    """What the model says of each image: a classifier's `top` classes, a mask, or numbers, as its task has it.

    An image that cannot be read gets an `error` instead. `model` is a model or a source for `load`; `images` are paths
    (folders are searched), PIL images or arrays, one or several. `task` is the model's, unless it is in a file
    ('mine.py:NAME') and must be given again. `progress` is called with the number of images answered so far and of all.
    A model that is in memory answers where it is, unless a `device` is named. Without a model, as in
    `vitlab.predict(images="photo.jpg")`, it is vitlab/tiny.
    """
    prediction.check(top, batch_size)
    permit(*([] if task is None else [task]))
    items = find_inputs(_given_images(images, "predict"))
    with _placed(model, device) as (loaded, _):
        return prediction.predict(loaded, items, top, batch_size, progress, task=task_for(loaded, task))


def train(
    recipe: "Recipe | str",
    *,
    model: "Model | nn.Module | None" = None,
    objective: "Objective | None" = None,
    out: StrPath | None = None,
    device: str | None = None,
    show: bool = False,
    find_lr: bool = False,
) -> "RunOutcome":
    """A run by a recipe or its name, in the folder `out` or a new one under runs/; `show` reports on standard error.

    With `find_lr` a range test chooses the recipe's optimizer.lr before the first step, and keeps it in recipe.json. A
    `model` or an `objective` of one's own takes the place of the recipe's; resuming the run needs it again.
    """
    from vitlab.recipes import find_recipe
    from vitlab.training import session
    from vitlab.training.recipe import Recipe

    chosen, device = find_recipe(recipe) if isinstance(recipe, str) else recipe, choose_device(device)
    if not isinstance(chosen, Recipe):
        raise Error(f"A recipe is a Recipe or the name of one, not {type(chosen).__name__}.")
    permit(*chosen.names().values())
    given = _given(model, objective)
    chosen = session.with_given(chosen, given)
    folder = _run_folder(out, chosen.name)
    outcome = session.train(chosen, folder, device=device, show=show, given=given, find_lr=find_lr)
    return _reported(outcome, device, show=show)


def resume(
    run: StrPath,
    *,
    recipe: "Recipe | None" = None,
    model: "Model | nn.Module | None" = None,
    objective: "Objective | None" = None,
    device: str | None = None,
    show: bool = False,
) -> "RunOutcome":
    """Continue a run from its last checkpoint.

    A `recipe` may say otherwise than the run's how it is computed and where its data are, not what it computes. A model
    or an objective that was given as an object is given again, and so, in a recipe, is what is in a file.
    """
    from vitlab.training import session

    device, given = choose_device(device), _given(model, objective)
    permit(*(() if recipe is None else recipe.names().values()))
    return _reported(session.resume(Path(run), recipe=recipe, device=device, show=show, given=given), device, show=show)


def _given(model: "Model | nn.Module | None", objective: "Objective | None") -> "Given":
    from vitlab.training.plan import Given

    return Given(model, objective)


def report(
    run: StrPath,
    *,
    task: str | None = None,
    data: str | None = None,
    images: int | None = None,
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "Report":
    """Write a run's `report.html` again, also while it is running; `images` held-out pictures are looked at.

    By default as many as take some seconds. What cannot be had, as where the data is gone, is said in the report.
    `task` is the run's, unless it is in a file ('mine.py:NAME') and must be given again; so is `data`, unless it was
    moved.
    """
    from vitlab.reporting.make import make_report

    folder, where = Path(run), choose_device(device)
    purpose = _purpose(folder, task) if (folder / "recipe.json").is_file() else None
    return make_report(
        folder, lambda: _plan(folder, data), purpose=purpose, images=images, device=where, progress=progress
    )


def _purpose(folder: Path, task: str | None) -> "Purpose":
    """What a run's model is for, by its recipe or by the name of the same task in this call."""
    from vitlab.reporting.purpose import Purpose
    from vitlab.tasks import TASKS
    from vitlab.training.recipe import chosen
    from vitlab.training.session import recipe_of

    recipe = recipe_of(folder)
    permit(*([] if task is None else [task]))
    choice = dataclasses.replace(recipe.task, name=task or recipe.task.name)
    kind, options = chosen(TASKS, choice, where="task")
    return Purpose(task=kind.build(options), name=choice.name, summary=kind.summary, loss=recipe.loss)


def _plan(folder: Path, data: str | None) -> "Plan":
    """A run's data, divided as training had it, and its number of steps; `data` is where it is now."""
    from vitlab.reporting.make import Plan
    from vitlab.training.plan import open_parts, planned_steps
    from vitlab.training.session import recipe_of

    recipe = recipe_of(folder)
    if data is not None:
        permit(data)
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, source=_source(data, "data")))
    dataset = open_parts(recipe)
    return Plan(dataset, *planned_steps(recipe, dataset))


def _reported(outcome: "RunOutcome", device: str | None, *, show: bool) -> "RunOutcome":
    """The outcome of a run that ended, its report and card written by the first process; without one it is no worse.

    The other processes wait for it, so that none of them can end the run before the report is written.
    """
    from vitlab.training.distribution import first_alone, join

    with join(device) as world, first_alone(world) as own:
        if own and outcome.reason != "signal":
            try:
                renew_card(outcome.folder)
                with stage("Writing the report", shown=show) as progress:
                    report(outcome.folder, device=device, progress=progress)
            except Exception as error:  # noqa: BLE001  the run is done and its model is there
                why = (str(error).splitlines() or [type(error).__name__])[0]
                log.warning(
                    "The report of %s could not be made (%s); `vitlab report` tries again.", outcome.folder, why
                )
    return outcome


def finetune(
    data: StrPath,
    model: "StrPath | Model | nn.Module" = DEFAULT,
    *,
    task: str = "classification",
    out: StrPath | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    lr: float | Literal["auto"] | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
    augment: Literal["none", "light", "strong"] = "light",
    balanced: bool = False,
    freeze: Literal["none", "backbone"] = "none",
    lora: int | None = None,
    val_fraction: float = 0.1,
    patience: int | None = None,
    tracker: Literal["none", "mlflow", "wandb"] = "none",
    seed: int = 0,
    adjust: "Callable[[Recipe], Recipe] | None" = None,
    device: str | None = None,
    show: bool = False,
) -> "RunOutcome":
    """Transfer trained weights to a data set as the paper does; what is None follows from the data's size.

    `model` is a source for `load` (by default vitlab/tiny), a model, or a module that gives logits, features or maps of
    images; `task` classification, segmentation, or one's own as 'mine.py:NAME'. Without a GPU the resolution stays the
    model's own; with one, models of 224 px up to 384 are trained at 384, or at the next size that their patches divide.
    A BiT and a small ViT of under 224 px have rules of their own. lr="auto" is a range test. `adjust` gets the recipe
    that was chosen, and gives the one to train by.
    """
    from vitlab.core.config import Choice
    from vitlab.recipes.finetuning import finetune_recipe
    from vitlab.recipes.transfer import transfer_recipe, varied
    from vitlab.training.plan import divide, open_parts

    device, data, given = choose_device(device), _source(data, "data"), None
    if not isinstance(model, str | os.PathLike):
        given, model = model, "given"
    source, known_lr = _source(model, "model"), None if lr == "auto" else lr
    permit(task, data)
    _check_finetuning(freeze, steps, epochs)
    draft = finetune_recipe(  # so that nonsense is refused before anything is read
        data,
        source,
        steps=1 if steps is None else steps,
        lr=1.0 if known_lr is None else known_lr,
        warmup=0,
        held_out=val_fraction,
        batch_size=1 if batch_size is None else batch_size,
    )
    own: dict[str, Any] = {"patience": patience, "seed": seed, "task": Choice(task), "tracker": tracker}
    draft = dataclasses.replace(draft, **own)
    config = read_configuration(source, image_size=image_size) if given is None else _config_of(given, image_size)
    dataset = open_parts(draft)
    images = divide(dataset).train
    recipe = transfer_recipe(
        data,
        source,
        config,
        num_images=len(images),
        picture=_middle_size(images, data),
        on_gpu=device.startswith("cuda"),
        held_out=val_fraction,
        steps=steps,
        epochs=epochs,
        lr=known_lr,
        batch_size=batch_size,
        image_size=image_size,
    )
    parts = {
        "model": dataclasses.replace(recipe.model, train_only="head" if freeze == "backbone" else "all", lora=lora),
        "data": dataclasses.replace(recipe.data, balanced=balanced),
        "augmentation": varied(recipe.augmentation, augment),
        **own,
    }
    recipe = dataclasses.replace(recipe, **parts)
    recipe = adjust(recipe) if adjust else recipe
    _warn_of_leaks(dataset, data)
    return train(recipe, model=given, out=out, device=device, show=show, find_lr=lr == "auto")


def _warn_of_leaks(dataset: "DataSet", data: str) -> None:
    from vitlab.data.leaks import leaks_in_words

    first = os.environ.get("RANK", "0") == "0"  # it speaks for all
    if first and (said := leaks_in_words(dataset, data)) is not None:
        log.warning("%s", said)


def _middle_size(images: "Split", data: str) -> tuple[int, int]:
    """The size of the picture that half of some are larger than."""
    from vitlab.data.loading.resident import LOOK_AT, sizes

    pictures = sorted(sizes(images, max(len(images) // LOOK_AT, 1)), key=math.prod) or list(sizes(images))
    if not pictures:
        raise DataError(f"None of the {len(images):,} training images of {data} can be read.")
    return pictures[len(pictures) // 2]


def _check_finetuning(freeze: str, steps: int | None, epochs: float | None) -> None:
    if freeze not in ("none", "backbone"):
        raise Error(f"freeze must be none or backbone, not {freeze!r}.")
    if steps is not None and epochs is not None:
        raise Error("Give steps or epochs, not both.")
    if epochs is not None and not 0 < epochs < math.inf:
        raise Error(f"epochs must be above 0, not {epochs}.")


def _config_of(model: "Model | nn.Module", image_size: int | None) -> Any:
    """What is known of a model that was given: of a module, the size at which it is to see pictures."""
    from vitlab.models.outside import OutsideConfig

    if isinstance(model, Model):
        return model.config
    return OutsideConfig(name=type(model).__name__, image_size=(image_size or 224, image_size or 224))


def inspect(
    model: Model | StrPath = DEFAULT,
    images: Input | Iterable[Input] = (),
    *,
    out: StrPath | None = None,
    data: str | None = None,
    compare: Model | StrPath | None = None,
    layers: Iterable[int] | None = None,
    limit: int = 128,
    show: int = 8,
    batch_size: int = 8,
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "Inspection":
    """What a model learned and where it looks: filters, positions, attention maps, distance, entropy, similarity.

    Maps are of the first `show` images; averages over at most `limit` of the data set, or else of the images. `layers`,
    from 1, are those whose heads are shown and measured; `compare` is another model whose layers are set beside this
    one's. Figures, `inspect.json` and `inspect.html` are written where `out` is given. A model that is in memory is
    looked at where it is, unless a `device` is named.
    """
    from vitlab.inspection.gather import inspect_pictures

    items = find_inputs(images)
    with contextlib.ExitStack() as stack:
        loaded, name = stack.enter_context(_placed(model, device))
        other = None
        if compare is not None:
            other = stack.enter_context(_placed(compare, device or str(next(loaded.parameters()).device)))
        return inspect_pictures(
            loaded,
            name,
            items,
            out=None if out is None else Path(out),
            data=data,
            other=other,
            layers=None if layers is None else [layer - 1 for layer in layers],
            limit=limit,
            num_shown=show,
            batch_size=batch_size,
            predict=_predictions(model, loaded),
            progress=progress,
        )


def _predictions(source: Model | StrPath, model: Model) -> "Predict | None":
    """What the objective of a run says of pictures, where the model is a run's and its objective shows that."""
    run = None if isinstance(source, Model) else Path(source)
    if run is None or not (run / "recipe.json").is_file():
        return None
    from vitlab.training.trained import predicting

    try:
        return predicting(run, model)
    except Error as error:  # everything else can be looked at
        log.warning("The predictions of %s cannot be shown: %s", run, error)
        return None


@contextlib.contextmanager
def _placed(model: Model | StrPath, device: str | None) -> Iterator[tuple[Model, str]]:
    """A model and its name; one that was given stays where it is unless a device is named, and goes back afterwards."""
    from vitlab.evaluation.subject import lent

    where = None if device is None and isinstance(model, Model) else choose_device(device)
    loaded, name = _named(model)
    with lent(loaded):
        yield loaded if where is None else loaded.to(where), name


def _named(model: Model | StrPath) -> tuple[Model, str]:
    return (model, "the model") if isinstance(model, Model) else (load(_source(model, "model")), os.fspath(model))


def evaluate(
    protocol: str,
    model: Model | StrPath,
    data: str | None = None,
    *,
    split: str | None = None,
    name: str | None = None,
    image_size: int | None = None,
    crops: Literal[1, 5] = 1,
    flip: bool = False,
    resize: int | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    cache: StrPath | None = None,
    keep: bool = True,
    device: str | None = None,
    precision: Literal["auto", "float32", "bf16"] = "auto",
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> "Result":
    """What a protocol (accuracy, real, fewshot, linear, knn, finetune, vtab, cost) measures of a model on a data set.

    `mine.py:NAME` is one of your own. Keywords that are not named here are the protocol's own, and unknown ones are
    refused. Features are kept in `cache` unless `keep` is False. Processes that torchrun started share the work, and
    all get the same result.
    """
    from vitlab.evaluation.request import How, Request, checked_options
    from vitlab.evaluation.testtime import TestTime
    from vitlab.studies import PROTOCOLS
    from vitlab.studies.evaluate import HOST

    protocol = str(protocol)  # what is no name is refused as one that is not known
    permit(protocol, *([] if data is None else [data]))
    found = PROTOCOLS.find(protocol)
    request = Request(
        protocol=found.name,
        model=model if isinstance(model, Model) else _source(model, "model"),
        data=data,
        options=checked_options(found, options),
        how=How(
            split=split,
            name=name,
            image_size=image_size,
            views=TestTime(crops=crops, flip=flip, resize=resize),
            batch_size=batch_size,
            workers=workers,
            cache=None if cache is None else Path(cache),
            keep=keep,
            device=choose_device(device),
            precision=precision,
        ),
        host=HOST,
        progress=progress,
    )
    return found.run(request)


def embed(
    model: Model | StrPath = DEFAULT,
    images: Input | Iterable[Input] | None = None,
    *,
    image_size: int | None = None,
    crops: Literal[1, 5] = 1,
    flip: bool = False,
    resize: int | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    device: str | None = None,
    precision: Literal["float32", "bf16"] = "float32",
    progress: Callable[[int, int], None] | None = None,
) -> "Embedding":
    """The feature vector of each image: paths (folders are searched), PIL images or arrays, one or several."""
    from vitlab.evaluation.features import Reading
    from vitlab.evaluation.subject import lent, subject_of
    from vitlab.evaluation.testtime import TestTime, averaged
    from vitlab.inference.embed import embed_images
    from vitlab.studies.evaluate import share_of
    from vitlab.training.distribution import join

    items, views = find_inputs(_given_images(images, "embed")), TestTime(crops=crops, flip=flip, resize=resize)
    reading, device = Reading(batch_size=batch_size, workers=workers), choose_device(device)
    if isinstance(model, Model) and image_size is not None:
        raise Error("A model that is in memory has its resolution: load it with image_size instead.")
    loaded = model if isinstance(model, Model) else load(_source(model, "model"), image_size=image_size)
    with join(device) as world, lent(loaded):
        subject = subject_of(loaded, name=type(loaded).__name__, device=world.device, precision=precision)
        shared = dataclasses.replace(reading, share=share_of(world))
        return embed_images(averaged(subject, views), items, shared, progress)


def examine_data(
    data: StrPath,
    model: Model | StrPath | None = DEFAULT,
    *,
    near: float = 0.95,
    most: int = 10_000,
    page: StrPath | None = None,
    batch_size: int = 64,
    device: str | None = None,
    stage: "Stage | None" = None,
) -> "Examination":
    """What a data set holds, as training divides it, and what is wrong with it: see docs/data.md.

    Unreadable files, copies and leaks; by the features of `model`, of at most so many images, cropped copies, labels
    that are likely wrong and outliers. None for `model` leaves features out. `near` is how alike copies are, above 1
    those of equal bytes alone. `page` is a file for the same with thumbnails. `stage` is called with a title and an
    amount, for a context whose value is a progress function or None.
    """
    from vitlab.core.files import atomic_file
    from vitlab.evaluation.examination import examine
    from vitlab.evaluation.subject import subject_of
    from vitlab.reporting.data_page import data_page
    from vitlab.training.plan import open_parts
    from vitlab.training.recipe import DataChoice, Recipe

    source = _source(data, "data")
    permit(source)
    dataset = open_parts(Recipe(data=DataChoice(source=source)))
    with contextlib.ExitStack() as stack:
        subject = None
        if model is not None:
            loaded, name = stack.enter_context(_placed(model, device))
            subject = subject_of(loaded, name=name, device=next(loaded.parameters()).device)
        found = examine(dataset, subject, near=near, most=most, batch_size=batch_size, stage=stage)
    if page is not None:
        with atomic_file(Path(page)) as partial:
            partial.write_text(data_page(found, dataset), encoding="utf-8", errors="backslashreplace")
    return found


def export(
    model: Model | StrPath,
    path: StrPath,
    *,
    sizes: "Sizes" = "auto",
    precision: "Precision" = "float32",
    pixels: bool = False,
    opset: int = 20,
) -> "Exported":
    """A model as a program: ONNX (.onnx) or torch.export's (.pt2), for any batch and, where it can be, any image size.

    Nothing is written unless it gives what the model gives. With `pixels` it takes bytes [B, H, W, 3] of resized
    pictures and normalises them itself.
    """
    from vitlab.exporting import program as exporting

    form = exporting.Form(sizes=sizes, precision=precision, pixels=pixels, opset=opset)
    return exporting.export(_named(model)[0], Path(path), form)


def export_int8(
    model: Model | StrPath,
    path: StrPath,
    *,
    data: str | None = None,
    split: str | None = None,
    sizes: "Sizes" = "auto",
    pixels: bool = False,
    opset: int = 20,
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> "Quantized":
    """An ONNX program whose products are of 8-bit numbers, and `path`.json: its size, speed and accuracy on `data`."""
    from vitlab.exporting.int8_accuracy import export_measured
    from vitlab.exporting.program import Form

    form = Form(sizes=sizes, pixels=pixels, opset=opset)
    loaded, target = _named(model)[0], Path(path)
    return export_measured(loaded, target, form, data, split=split, batch_size=batch_size, progress=progress)


def push(
    source: StrPath, repository: str, *, private: bool = False, message: str | None = None, license: str | None = None
) -> "Pushed":
    """Upload a run's model, or a native folder, to 'hf-hub:owner/name'; the repository is made where there is none."""
    from vitlab.weights import push as pushing

    return pushing.push(Path(source), repository, private=private, message=message, license=license)


def _given_images(images: Input | Iterable[Input] | None, verb: str) -> Input | Iterable[Input]:
    if images is None:
        raise Error(
            f"There are no images: vitlab.{verb}(images=...) asks {DEFAULT}, vitlab.{verb}(model, images) another one."
        )
    return images


def _source(value: object, what: str) -> str:
    """A path or a name, as recipes keep it."""
    if not isinstance(value, str | os.PathLike):
        raise Error(f"`{what}` must be a path or a name, not {type(value).__name__}.")
    return os.fspath(cast("StrPath", value))


def _run_folder(out: StrPath | None, name: str) -> Path:
    if out is not None:
        if not os.fspath(out):
            raise ConfigError("An empty name is no folder for a run: give one, or leave it out for one in runs/.")
        return Path(out)
    folder = Path("runs", name)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return folder if several else free_path(folder)  # the one that all processes agree on without a word
