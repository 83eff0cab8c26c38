"""Whether the Hugging Face hub can be asked: its client by itself would try again for half a minute, line by line."""

import contextlib
import threading
from collections.abc import Iterator

from huggingface_hub import constants, get_session
from huggingface_hub.constants import is_offline_mode

PATIENCE = 2.0  # seconds in which the hub has to answer anything at all


@contextlib.contextmanager
def answering() -> Iterator[str]:
    """Why the hub cannot be asked, or an empty text; where it does not answer, its client only looks into the cache."""
    if is_offline_mode():
        yield "HF_HUB_OFFLINE is set"
    elif _answers():
        yield ""
    else:
        constants.HF_HUB_OFFLINE = True
        try:
            yield f"{constants.ENDPOINT} does not answer"
        finally:
            constants.HF_HUB_OFFLINE = False


def _answers() -> bool:
    """Whether the hub says anything in time; asked by a thread, since looking up a name cannot be given a limit."""
    said, done = list[int](), threading.Event()

    def ask() -> None:
        with contextlib.suppress(Exception):  # of the HTTP library, whichever it is
            said.append(get_session().head(constants.ENDPOINT, timeout=PATIENCE, follow_redirects=False).status_code)
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    done.wait(PATIENCE)
    return bool(said) and said[0] < 500  # what a proxy answers for a hub that it does not reach
