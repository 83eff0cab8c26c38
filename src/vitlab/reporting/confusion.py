"""The confusion matrix as a drawing, and the largest confusions as a table."""

from collections.abc import Mapping, Sequence

from vitlab.reporting.markup import Html, join, tag
from vitlab.reporting.measure import confused
from vitlab.reporting.words import percent, short

MOST_DRAWN = 100  # classes; of more, the largest confusions alone are shown
WITH_NUMBERS = 20  # classes up to which the counts stand in the squares
SIZES = (
    (12, 40, 12.0, 22),
    (20, 32, 11.0, 20),
    (40, 18, 10.0, 20),
    (MOST_DRAWN, 9, 8.0, 18),
)  # classes: square, font, name
MOST_ROWS = 12
DARK = 0.55  # share from which the count in a square is in the paper's colour


def matrix(confusion: Mapping[tuple[int, int], int], counts: Sequence[int], classes: Sequence[str]) -> Html | None:
    """Rows are what pictures are, columns what they were taken for; darker is a larger share of the row."""
    if len(classes) > MOST_DRAWN:
        return None
    side, font, longest = next((s, f, n) for most, s, f, n in SIZES if len(classes) <= most)
    names = [short(name, longest) for name in classes]
    margin = 26 + 0.62 * font * max(len(name) for name in names)
    turned = max(len(name) for name in names) * 0.62 * font > side - 4
    top = margin if turned else 26 + 1.4 * font
    grid = side * len(classes)
    parts: list[Html] = [
        tag("rect", class_="field", x=margin, y=top, width=grid, height=grid),
        tag("text", "what it said", class_="axis", x=margin + grid / 2, y=12, text_anchor="middle"),
        tag(
            "text",
            "what it is",
            class_="axis",
            x=0,
            y=0,
            text_anchor="middle",
            transform=f"translate(11 {top + grid / 2:.1f}) rotate(-90)",
        ),
    ]
    for place, (name, whole) in enumerate(zip(names, classes, strict=True)):
        middle = (place + 0.5) * side
        parts.append(
            tag(
                "text",
                tag("title", whole),
                name,
                x=margin - 6,
                y=top + middle + 0.35 * font,
                text_anchor="end",
                font_size=font,
            )
        )
        column = f"translate({margin + middle + 0.35 * font:.1f} {top - 6:.1f}) rotate(-90)"
        parts.append(
            tag("text", tag("title", whole), name, transform=column, font_size=font)
            if turned
            else tag("text", name, x=margin + middle, y=top - 6, text_anchor="middle", font_size=font)
        )
    for (truth, said), amount in sorted(confusion.items()):
        share = amount / counts[truth]
        words = f"{classes[truth]} taken for {classes[said]}: {amount:,} of {counts[truth]:,} ({percent(share)})"
        x, y = margin + said * side, top + truth * side
        kind = "right" if truth == said else "wrong"
        parts.append(
            tag(
                "rect",
                tag("title", words),
                class_=f"cell {kind}",
                x=x,
                y=y,
                width=side,
                height=side,
                fill_opacity=round(0.1 + 0.9 * share, 3),
            )
        )
        if len(classes) <= WITH_NUMBERS:
            tone = "on" if share > DARK else "off"
            parts.append(
                tag(
                    "text",
                    f"{amount}",
                    class_=f"amount {tone}",
                    x=x + side / 2,
                    y=y + side / 2 + 0.35 * font,
                    text_anchor="middle",
                    font_size=font,
                )
            )
    parts += (
        [
            tag(
                "path",
                class_="lines",
                d="".join(
                    f"M{margin + i * side:.1f} {top:.1f}v{grid}M{margin:.1f} {top + i * side:.1f}h{grid}"
                    for i in range(len(classes) + 1)
                ),
            )
        ]
        if len(classes) <= 40
        else []
    )
    width, height = margin + grid + 4, top + grid + 4
    right = sum(amount for (truth, said), amount in confusion.items() if truth == said)
    label = (
        f"Confusion matrix of {len(classes)} classes: {right:,} of {sum(confusion.values()):,} pictures are on its"
        " diagonal, which is right. The largest confusions are in the table below."
    )
    style = f"max-width:{1.15 * width:.0f}px;min-width:{0.72 * width:.0f}px"
    return tag(
        "svg",
        join(parts),
        class_="matrix",
        role="img",
        aria_label=label,
        style=style,
        viewBox=f"0 0 {width:.1f} {height:.1f}",
    )


def largest(confusion: Mapping[tuple[int, int], int], counts: Sequence[int], classes: Sequence[str]) -> Html | None:
    """The pairs that are confused most."""
    rows = confused(confusion, counts, MOST_ROWS)
    if not rows:
        return None
    head = tag(
        "tr",
        *(
            tag("th", words, scope="col", class_=kind)
            for words, kind in (
                ("it is", None),
                ("it said", None),
                ("times", "amount"),
                ("of these pictures", "amount"),
            )
        ),
    )
    lines = [
        tag(
            "tr",
            tag("td", short(classes[truth], 40)),
            tag("td", short(classes[said], 40)),
            tag("td", f"{amount:,}", class_="amount"),
            tag("td", percent(share), class_="amount"),
        )
        for truth, said, amount, share in rows
    ]
    return tag(
        "table", tag("caption", "The largest confusions"), tag("thead", head), tag("tbody", *lines), class_="plain"
    )
