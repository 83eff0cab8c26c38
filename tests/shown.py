"""What shows itself in a notebook, as the notebook's page takes it."""

import re
from typing import Any

from report_pages import Page

HOSTILE = "<script>alert(1)</script> \x1b[2J\x07 \u202e ' onload='x\n</style>&amp;"


def shown(value: Any) -> Page:
    """Parsed and checked: whole, on its own, and in the colours of whatever theme it is shown in."""
    source = value._repr_html_()
    assert isinstance(source, str)
    page = Page(source)
    assert "<style" not in source  # it would be the whole notebook's
    assert not re.search(r"(?<![-\w])color:(?!inherit)", source)  # words have the theme's colour
    assert not re.search(r"background:(?!rgba|rgb)", source)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", source)
    assert all(link.startswith(("data:image/", "#", "file:///")) or ":" not in link for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert all(image["alt"] for image in page.images)
    return page
