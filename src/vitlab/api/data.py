"""What a data set holds."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.api.given import placed, source_name
from vitlab.core.registry import permit
from vitlab.data.decoding import StrPath
from vitlab.models.contract import Model
from vitlab.weights.box import DEFAULT

if TYPE_CHECKING:
    from vitlab.evaluation.examination import Examination, Stage


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
    from vitlab.core.files import atomic_file, check_writable
    from vitlab.evaluation.examination import examine
    from vitlab.evaluation.subject import subject_of
    from vitlab.training.plan import open_parts
    from vitlab.training.recipe import DataChoice, Recipe

    source = source_name(data, "data")
    if page is not None:
        check_writable(Path(page), [source])
    permit(source)
    dataset = open_parts(Recipe(data=DataChoice(source=source)))
    with contextlib.ExitStack() as stack:
        subject = None
        if model is not None:
            loaded, name = stack.enter_context(placed(model, device))
            subject = subject_of(loaded, name=name, device=next(loaded.parameters()).device)
        found = examine(dataset, subject, near=near, most=most, batch_size=batch_size, stage=stage)
    if page is not None:
        from vitlab.reporting.data_page import data_page

        with atomic_file(Path(page)) as partial:
            partial.write_text(data_page(found, dataset), encoding="utf-8", errors="backslashreplace")
    return found
