"""Services for the tests that leave them as they were."""

import dataclasses
from collections.abc import Iterator

import pytest

from vitlab.serving.limits import Limits
from web.live import Live, serving, small_model

# as the defaults, but small enough for a test to reach
LIMITS = Limits(body_bytes=1_000_000, pixels=1_000_000, images=4, queue=32, connections=40)
IMPATIENT = dataclasses.replace(LIMITS, receive_seconds=0.3, write_seconds=0.3, linger_seconds=0.15, idle_seconds=0.15)


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    with serving(small_model(), LIMITS) as service:
        yield service


@pytest.fixture(scope="session")
def impatient() -> Iterator[Live]:
    """One whose deadlines a test can wait for."""
    with serving(small_model(), IMPATIENT) as service:
        yield service
