"""What a study of data sizes says of the paper's order."""

import pytest

from vitlab.studies.data_size import order
from vitlab.studies.findings import Sample


def around(percent: float) -> Sample:
    return Sample((percent / 100 - 0.002, percent / 100, percent / 100 + 0.002))


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [
        ((40, 60), (85, 80), "The paper's order holds against the BiT"),
        ((40, 60), (80, 80.1), "Half of the paper's order holds against the BiT: the ViT is below on little"),
        ((60, 60.1), (85, 80), "Half of the paper's order holds against the BiT: the ViT is level on little"),
        ((40, 60), (70, 80), "with more data it comes nearer (+10.0 ± 0.5 points)"),
        ((40, 60), (60.2, 80), "with more data no change is seen (+0.2 ± 0.5 points)"),
        ((50, 60), (60, 80), "with more data it falls further behind (-10.0 ± 0.5 points)"),
        ((60, 60.1), (60, 60.1), "is not seen here"),
        ((60, 50), (60, 50), "is not seen here"),
    ],
)
def test_no_more_is_said_than_the_numbers_do(least: tuple[float, float], most: tuple[float, float], said: str) -> None:
    """Deviations are 0.2 points: by 8 degrees of freedom the change is known to 2.306 * 0.2 * (4/3)^.5 = 0.53."""
    assert said in order("BiT", (around(least[0]), around(least[1])), (around(most[0]), around(most[1])))
