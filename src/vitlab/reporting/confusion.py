"""The confusion matrix as a drawing."""

from dataclasses import dataclass

from vitlab.core.markup import Html, join, tag
from vitlab.core.words import percent, short
from vitlab.tasks.sections import Matrix

WITH_NUMBERS = 20  # classes up to which the counts stand in the squares
WITH_LINES = 40  # and up to which there are lines between them
SIZES = {12: (40, 12.0, 22), 20: (32, 11.0, 20), 40: (18, 10.0, 20)}  # classes: square, font, letters of a name
SMALLEST = (9, 8.0, 18)
LETTER = 0.62  # width of a letter by the height of its font
BELOW = 0.35  # of a font, from the middle of a line to its foot
DARK = 0.55  # share from which the count in a square is in the paper's colour


@dataclass(frozen=True)
class Grid:
    """Where squares and names are."""

    side: int
    font: float
    left: float
    top: float
    size: int  # of all squares
    turned: bool  # whether the names of columns are upright


def matrix(drawn: Matrix) -> Html:
    """Rows are what pictures are, columns what they were taken for; darker is a larger share of the row."""
    side, font, longest = next((sizes for most, sizes in SIZES.items() if len(drawn.classes) <= most), SMALLEST)
    names = [short(name, longest) for name in drawn.classes]
    width = LETTER * font * max(len(name) for name in names)
    turned = width > side - 4
    grid = Grid(side, font, 26 + width, 26 + (width if turned else 1.4 * font), side * len(names), turned)
    parts = [*_frame(grid), *_names(grid, names, drawn.classes), *_squares(grid, drawn)]
    if len(names) <= WITH_LINES:
        parts.append(_lines(grid, len(names)))
    across, down = grid.left + grid.size + 4, grid.top + grid.size + 4
    right = sum(amount for (truth, said), amount in drawn.confusion.items() if truth == said)
    label = (
        f"Confusion matrix of {len(names)} classes: {right:,} of {sum(drawn.confusion.values()):,} pictures are on its"
        " diagonal, which is right. The largest confusions are in the table below."
    )
    return tag(
        "svg",
        join(parts),
        class_="matrix",
        role="img",
        aria_label=label,
        style=f"max-width:{1.15 * across:.0f}px;min-width:{0.72 * across:.0f}px",
        viewBox=f"0 0 {across:.1f} {down:.1f}",
    )


def _frame(grid: Grid) -> list[Html]:
    middle = grid.size / 2
    beside = f"translate(11 {grid.top + middle:.1f}) rotate(-90)"
    return [
        tag("rect", class_="field", x=grid.left, y=grid.top, width=grid.size, height=grid.size),
        tag("text", "what it said", class_="axis", x=grid.left + middle, y=12, text_anchor="middle"),
        tag("text", "what it is", class_="axis", x=0, y=0, text_anchor="middle", transform=beside),
    ]


def _names(grid: Grid, names: list[str], classes: tuple[str, ...]) -> list[Html]:
    parts: list[Html] = []
    for place, (name, whole) in enumerate(zip(names, classes, strict=True)):
        middle, foot = (place + 0.5) * grid.side, BELOW * grid.font
        hover, font = tag("title", whole), grid.font
        row = {"x": grid.left - 6, "y": grid.top + middle + foot}
        parts.append(tag("text", hover, name, **row, text_anchor="end", font_size=font))
        if grid.turned:
            column = f"translate({grid.left + middle + foot:.1f} {grid.top - 6:.1f}) rotate(-90)"
            parts.append(tag("text", hover, name, transform=column, font_size=font))
        else:
            above = {"x": grid.left + middle, "y": grid.top - 6}
            parts.append(tag("text", name, **above, text_anchor="middle", font_size=font))
    return parts


def _squares(grid: Grid, drawn: Matrix) -> list[Html]:
    parts: list[Html] = []
    side, classes = grid.side, drawn.classes
    for (truth, said), amount in sorted(drawn.confusion.items()):
        share, of = amount / drawn.counts[truth], drawn.counts[truth]
        words = f"{classes[truth]} taken for {classes[said]}: {amount:,} of {of:,} ({percent(share)})"
        x, y = grid.left + said * side, grid.top + truth * side
        kind, shade = f"cell {'right' if truth == said else 'wrong'}", round(0.1 + 0.9 * share, 3)
        hover = tag("title", words)
        parts.append(tag("rect", hover, class_=kind, x=x, y=y, width=side, height=side, fill_opacity=shade))
        if len(classes) <= WITH_NUMBERS:
            tone = f"amount {'on' if share > DARK else 'off'}"
            middle = {"x": x + side / 2, "y": y + side / 2 + BELOW * grid.font}
            parts.append(tag("text", f"{amount}", class_=tone, **middle, text_anchor="middle", font_size=grid.font))
    return parts


def _lines(grid: Grid, num: int) -> Html:
    left, top, side, size = grid.left, grid.top, grid.side, grid.size
    steps = (f"M{left + i * side:.1f} {top:.1f}v{size}M{left:.1f} {top + i * side:.1f}h{size}" for i in range(num + 1))
    return tag("path", class_="lines", d="".join(steps))
