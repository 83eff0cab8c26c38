"""Markup from parts, with every plain text escaped: names of classes and files are not to be trusted."""

from vitlab.core.words import escaped

VOID = frozenset({"img", "br", "hr"})


class Html(str):
    """Text that is markup already; a plain str never is."""

    __slots__ = ()


def tag(element: str, *children: str | None, **attributes: str | float | None) -> Html:
    """An element. `class_` is class and `aria_label` is aria-label; what is None is left out, texts are escaped."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    opening = "".join(f' {name}="{escaped(_text(value))}"' for name, value in named.items())
    if element in VOID:
        return Html(f"<{element}{opening}>")
    return Html(f"<{element}{opening}>{join(children)}</{element}>")


def join(parts: tuple[str | None, ...] | list[Html] | list[str], between: str = "") -> Html:
    """Parts one after the other: markup as it is, texts escaped."""
    texts = [part if isinstance(part, Html) else escaped(part) for part in parts if part is not None]
    return Html(between.join(texts))


def _text(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
