"""What a request's query asks for, and whether this model can answer it."""

from collections.abc import Mapping
from typing import cast

from starlette.datastructures import QueryParams

from vitlab.serving.engine import Attend, Compare, Engine, Rows
from vitlab.serving.http.errors import APIError
from vitlab.serving.limits import Limits

TOP, MOST_TOP = 5, 1000


def read_top(query: QueryParams) -> int:
    """How many classes to give."""
    return _integer(_single(query, "top"), "top", MOST_TOP) or TOP


def check_no_parameters(query: QueryParams) -> None:
    """For routes that take no parameters."""
    _single(query)


def read_attention(query: QueryParams) -> Attend:
    """Which attention to give; in the query layers and heads count from 1."""
    given = _single(query, "rollout", "layer", "head", "rows")
    rollout, rows = given.get("rollout", "true"), given.get("rows", "output")
    if rollout not in ("true", "false"):
        raise APIError("bad_parameter", "rollout must be true or false.")
    if rows not in ("output", "all"):
        raise APIError("bad_parameter", "rows must be output or all.")
    layer, head = _integer(given, "layer"), _integer(given, "head")
    return Attend(
        rollout == "true",
        None if layer is None else layer - 1,
        None if head is None else head - 1,
        cast("Rows", rows),
    )


def check_predict(engine: Engine) -> None:
    if not engine.num_classes:
        raise APIError("impossible", "The model has no classifier: it gives features (/v1/embed), not classes.")


def check_attention(task: Attend, engine: Engine, limits: Limits, num_images: int) -> Attend:
    """The task as this model can do it, a head without a layer being one of the last; or an error."""
    depth = engine.num_layers
    if not depth:
        raise APIError("impossible", "The model does not work by attention.")
    layer = depth - 1 if task.layer is None and task.head is not None else task.layer
    if layer is not None and layer >= depth:
        raise APIError("bad_parameter", f"layer must be 1 to {depth}.")
    heads = 0 if layer is None else engine.num_heads[layer]
    if task.head is not None and task.head >= heads:
        raise APIError("bad_parameter", f"head must be 1 to {heads}.")
    if engine.misfits and (task.rollout or layer in engine.misfits or task.rows == "output"):
        raise APIError("impossible", next(iter(engine.misfits.values())))
    patches = engine.layout.grid[0] * engine.layout.grid[1]
    a_map = patches if task.rows == "output" else (patches + engine.layout.num_prefix) ** 2
    if num_images * a_map * (task.rollout + (heads if task.head is None else 1)) > limits.attention_values:
        message = f"This would be more than {limits.attention_values:,} numbers: ask for one head, or for fewer images."
        raise APIError("impossible", message)
    return Attend(task.rollout, layer, task.head, task.rows)


def read_tokens(query: QueryParams) -> int | None:
    """After which layer; 0 is before the first."""
    return _integer(_single(query, "layer"), "layer", least=0)


def check_tokens(layer: int | None, engine: Engine, limits: Limits, num_images: int) -> Compare:
    """The task as this model can do it, without a layer after the last; or an error."""
    depth = len(engine.grids) - 1
    chosen = depth if layer is None else layer
    if chosen > depth:
        raise APIError("bad_parameter", f"layer must be 0 to {depth}.")
    rows, columns = engine.grids[chosen]
    if num_images * (rows * columns + 1) * rows * columns > limits.attention_values:
        message = f"{rows} x {columns} tokens have too many pairs: ask for another layer, or for fewer images."
        raise APIError("impossible", message)
    return Compare(chosen)


def _single(query: QueryParams, *known: str) -> Mapping[str, str]:
    """The parameters, each given at most once and each known."""
    items = query.multi_items()
    for name, _ in items:
        if name not in known:
            takes = f"the parameters are {', '.join(known)}" if known else "there are no parameters"
            raise APIError("bad_parameter", f"There is no parameter '{name[:40]}': {takes}.")
    if len(items) != len(dict(items)):
        raise APIError("bad_parameter", "A parameter is given twice.")
    return dict(items)


def _integer(given: Mapping[str, str], name: str, most: int = 10_000, least: int = 1) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and least <= int(text) <= most):
        raise APIError("bad_parameter", f"{name} must be a whole number from {least} to {most}.")
    return int(text)
