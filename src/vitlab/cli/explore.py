"""`vitlab explore`: the page that walks a picture through a model, in the browser."""

import threading
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitlab.cli import serve
from vitlab.cli.parsing import parse
from vitlab.cli.terminal import say
from vitlab.weights.box import DEFAULT

if TYPE_CHECKING:
    from vitlab.serving.static import File

DESCRIPTION = """Walk a picture through a model in the browser: patches, embedding, positions, tokens, attention.

This starts a service for this machine only, and opens a browser with the picture on its page; other pictures can be
dropped onto the page. Without IMAGE it shows a sample: a photo by danielbuechele (CC BY 2.0) that comes with
scikit-learn. Ctrl-C ends it.

Examples:
  vitlab explore
  vitlab explore cat.jpg
  vitlab explore cat.jpg --model runs/pets --no-browser
"""
SHOWN = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"}  # by every browser


@dataclass(frozen=True)
class Arguments:
    image: Annotated[Positional[Path | None], arg(metavar="[IMAGE]")] = None
    """The first picture; by default a sample."""
    model: Annotated[str, arg(metavar="SOURCE")] = DEFAULT
    """Where the weights come from: a run, a folder, a file, a checkpoint's name, hf-hub:owner/name, timm:name."""
    port: int = 0
    """The port of the service; 0 takes a free one."""
    no_browser: bool = False
    """Only print the address."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab explore", description=DESCRIPTION)
    serve.prepare()
    picture = None if given.image is None else _picture(given.image)

    def tell(name: str, address: str) -> None:
        page = f"{address}/?picture" if picture else f"{address}/"
        print(f"Exploring {name} at {page} (Ctrl-C ends)", flush=True)
        if not given.no_browser:  # in a thread: some browsers take seconds to say that they started
            threading.Thread(target=_open, args=(page,), daemon=True).start()

    return serve.run(serve.Arguments(model=given.model, port=given.port, device=given.device), tell, picture)


def _picture(path: Path) -> "File":
    """The picture as the page can show it, found out before the model is loaded."""
    import io

    from vitlab.data.decoding import read_image
    from vitlab.serving.static import File

    image = read_image(path)
    if path.suffix.lower() in SHOWN:
        return File(path.read_bytes(), f"picture{path.suffix.lower()}")
    file = io.BytesIO()
    image.save(file, "PNG")
    return File(file.getvalue(), "picture.png")


def _open(page: str) -> None:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        opened = False
    else:
        in_terminal = type(browser) is webbrowser.GenericBrowser  # lynx and the like: it would take over this one
        opened = not in_terminal and browser.open(page)
    if not opened:
        say("vitlab: no browser could be started: open the address in one.")
