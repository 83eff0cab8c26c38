"""How far something is that takes long: a bar on a terminal, elsewhere a line now and then."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from vitlab.core.words import clock, one_line

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY = 10.0  # seconds between lines where there is no terminal
NARROW = 72  # columns of a terminal below which a bar leaves too little for numbers

Progressing: TypeAlias = Callable[[int, int], None]  # with how many are done, and of how many


def bar(*, transient: bool = False) -> "Progress":
    """rich's bar on standard error: how many of all, description, and the field `left`; where it is narrow, no bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Description(TextColumn):
        def render(self, task: Task) -> Text:
            text = super().render(task)
            text.no_wrap, text.overflow = True, "ellipsis"
            return text

    console = Console(stderr=True)
    narrow = console.width < NARROW
    columns = (
        *(() if narrow else (BarColumn(None),)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        Description("{task.description}", markup=False, table_column=Column(no_wrap=not narrow)),
        TextColumn("{task.fields[left]}"),
    )
    return Progress(*columns, console=console, transient=transient)


@contextlib.contextmanager
def stage(title: str, *, shown: bool = True, transient: bool = False) -> Iterator[Progressing]:
    """Say what begins, and give a function that shows how far it is."""
    title, begun, reports = one_line(title), time.monotonic(), list[tuple[float, int]]()

    def left(done: int, total: int) -> str:
        """The time for the rest at the pace since the first report, before which there is much to make ready.

        Where fewer are done than before, something else is counted now, and the pace is its own.
        """
        now = time.monotonic()
        if reports and done < reports[-1][1]:
            reports.clear()
        reports[1:] = [(now, done)]  # the first and the last
        since, before = reports[0]
        return f"{clock((now - since) / (done - before) * (total - done))} left" if before < done < total else ""

    if not shown:
        yield lambda *_: None
    elif sys.stderr.isatty():
        with bar(transient=transient) as shown_bar:
            task = shown_bar.add_task(title, total=None, left="")
            yield lambda done, total: shown_bar.update(task, completed=done, total=total, left=left(done, total))
    else:
        print(f"{title}.", file=sys.stderr, flush=True)
        said = [begun]

        def progress(done: int, total: int) -> None:
            remaining = left(done, total)
            if remaining and time.monotonic() - said[0] >= EVERY:
                said[0] = time.monotonic()
                print(f"{title}: {done:,}/{total:,}  {remaining}", file=sys.stderr, flush=True)

        yield progress
