"""How a model shows itself in a notebook."""

import dataclasses

from vitlab.core import notebook
from vitlab.core.markup import Html
from vitlab.core.words import count, listed, millions, number
from vitlab.models.contract import Model
from vitlab.models.counts import count_parameters


def shown(model: Model) -> Html:
    """What goes in, how it is cut, what comes out, how large it is, and what loading said."""
    weight = next(model.parameters(), None)
    facts = [["takes", _takes(model)], ["sees", _sees(model)], ["layers", _layers(model)], ["answers", _answers(model)]]
    facts.append(["parameters", millions(count_parameters(model))])
    if weight is not None:
        kind = str(weight.dtype).removeprefix("torch.")
        facts.append(["where", f"{kind} on {weight.device}, in {'training' if model.training else 'evaluation'} mode"])
    said = [] if model.load_report is None else [notebook.faint(text) for text in model.load_report.lines()]
    return notebook.card(
        type(model).__name__,
        notebook.table(["", ""], [fact for fact in facts if fact[1]]),
        *said,
        notebook.folded("the configuration", notebook.table(["", ""], _fields(model))),
    )


def _takes(model: Model) -> str:
    spec = model.preprocess
    height, width = spec.size
    if not model.takes_images:
        return f"noise of {model.example('meta').shape[1]} values"
    how = "squashed to it" if spec.resize == "squash" else "cut from the centre"
    mean, std = (", ".join(number(value) for value in values) for values in (spec.mean, spec.std))
    return f"pictures of {width} x {height} px, {how}, normalised by mean {mean} and std {std}"


def _sees(model: Model) -> str:
    grid, side = getattr(model.config, "grid", None), getattr(model.config, "patch_size", None)
    if not model.has_patches or grid is None or side is None:
        return ""
    prefix = getattr(model.config, "num_prefix", 0)
    return f"{grid[1]} x {grid[0]} patches of {side} x {side} px" + (
        f", and {count(prefix, 'token')} in front of them" if prefix else ""
    )


def _layers(model: Model) -> str:
    heads = getattr(model.config, "heads", None)
    if not model.num_layers:
        return ""
    with_heads = f", {count(heads, 'head')} each" if isinstance(heads, int) else ""
    return f"{model.num_layers}{with_heads}; {model.num_features} features"


def _answers(model: Model) -> str:
    num = getattr(model.config, "num_classes", 0)
    if not model.takes_images:
        height, width = model.preprocess.size
        return f"pictures of {width} x {height} px"
    if not num:
        return f"{model.num_features} features, no classes"
    each = " for each pixel" if model.is_dense else ", any number of them at once" if model.multi_label else ""
    return f"{count(num, 'class', 'classes')}{each}" + (f": {listed(model.labels)}" if model.labels else "")


def _fields(model: Model) -> list[list[str]]:
    """The configuration, a line per field; of a configuration that is no dataclass, what it prints as."""
    if not dataclasses.is_dataclass(model.config):
        return [["", repr(model.config)]]
    return [[field.name, str(getattr(model.config, field.name))] for field in dataclasses.fields(model.config)]
