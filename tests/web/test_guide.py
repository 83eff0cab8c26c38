"""The client in the guide, as it is printed there."""

import re
from pathlib import Path
from typing import Any

import pytest

from web.hostile import FILES
from web.live import Live, serving, small_model

pytestmark = pytest.mark.web

GUIDE = Path(__file__).parents[2] / "docs" / "serving.md"


def client_code() -> str:
    section = GUIDE.read_text().partition("## A client in ten lines")[2]
    return section.partition("```python\n")[2].partition("```")[0]


def test_the_client_has_ten_lines_and_works(live: Live, tmp_path: Path) -> None:
    code = client_code()
    assert len([line for line in code.splitlines() if line]) <= 10
    names: dict[str, Any] = {}
    exec(code, names)
    file = tmp_path / "cat.jpg"
    file.write_bytes(FILES["jpeg"])
    expected = live.post("/v1/predict", FILES["jpeg"]).json()["predictions"][0]["classes"]
    assert names["predict"](file, live.address) == expected
    with serving(small_model(), token="secret") as guarded:
        assert names["predict"](file, guarded.address, "secret") == expected


def test_the_limits_in_the_guide_are_the_defaults() -> None:
    from vitlab.serving.limits import Limits

    limits, table = Limits(), GUIDE.read_text().partition("## Limits")[2]
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", table, re.MULTILINE))
    assert rows["body"].startswith(f"{limits.body_bytes // 10**6} MB")
    assert rows["pixels of an image, by its header"].startswith(f"{limits.pixels // 10**6} million")
    assert rows["connections"].startswith(f"{limits.connections},")
    assert rows["images in a request"].startswith(f"{limits.images},")
    assert rows["images waiting"].startswith(f"{limits.queue},")
    assert rows["bodies held at once"] == f"{limits.buffered_bytes // 10**6} MB"
    assert rows["scans of a progressive JPEG"].startswith(f"{limits.scans},")
    assert rows["time for the head to arrive, then for the body"].startswith(f"{limits.receive_seconds:g} s each")
