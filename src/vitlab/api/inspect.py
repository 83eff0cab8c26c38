"""A look inside a model."""

import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.api.given import data_name, placed
from vitlab.core.errors import Error
from vitlab.data.decoding import Input, StrPath, find_inputs
from vitlab.models.contract import Model
from vitlab.weights.box import DEFAULT

if TYPE_CHECKING:
    from vitlab.inspection.gather import Inspection, Predict

log = logging.getLogger("vitlab")


def inspect(
    model: Model | StrPath = DEFAULT,
    images: Input | Iterable[Input] = (),
    *,
    out: StrPath | None = None,
    data: StrPath | None = None,
    compare: Model | StrPath | None = None,
    layers: Iterable[int] | None = None,
    limit: int = 128,
    show: int = 8,
    batch_size: int = 8,
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "Inspection":
    """What a model learned and where it looks: filters, positions, attention, kinds of patches, distance, similarity.

    Maps are of the first `show` images; averages over at most `limit` of the data set, or else of the images. `layers`,
    from 1, are those whose heads are shown and measured; `compare` is another model whose layers are set beside this
    one's. Figures, `inspect.json` and `inspect.html` are written where `out` is given. A model that is in memory is
    looked at where it is, unless a `device` is named.
    """
    from vitlab.inspection.gather import inspect_pictures

    items = find_inputs(images)
    with contextlib.ExitStack() as stack:
        loaded, name = stack.enter_context(placed(model, device))
        other = None
        if compare is not None:
            other = stack.enter_context(placed(compare, device or str(next(loaded.parameters()).device)))
        return inspect_pictures(
            loaded,
            name,
            items,
            out=None if out is None else Path(out),
            data=data_name(data),
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
