import pickle

import pytest

from vitlab.core import errors


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vit-b16-223", " Did you mean vit-b16-224?"),
        ("ViT-B16-224", " Did you mean vit-b16-224?"),
        ("resnet", ""),
    ],
)
def test_near_matches_ignore_case_and_stay_silent_when_nothing_is_near(name: str, hint: str) -> None:
    assert errors.near_matches(name, ["vit-b16-224", "deit"]) == hint


def test_near_matches_keep_the_spelling_of_the_table() -> None:
    assert errors.near_matches("vit-b16", ["ViT-B16"]) == " Did you mean ViT-B16?"


def test_an_unknown_name_says_where_to_look_when_nothing_is_near() -> None:
    assert str(errors.unknown_name("model", "zzz", ["vit"], " See the list.")) == (
        "There is no model named 'zzz'. See the list."
    )
    assert str(errors.unknown_name("model", "vitt", ["vit"], " See the list.")) == (
        "There is no model named 'vitt'. Did you mean vit?"
    )


def test_every_error_can_be_caught_as_one() -> None:
    found = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)]
    assert len(found) >= 7
    assert all(issubclass(item, errors.Error) for item in found)


def test_a_sentence_shows_what_a_file_says_on_one_line() -> None:
    error = errors.Error("a\nvitlab: b\x1b[31m\x00\u202e, 'né'.")
    assert str(error) == r"a\nvitlab: b\x1b[31m\x00\u202e, 'né'."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_long_sentence_keeps_its_beginning_and_its_end() -> None:
    text = str(errors.Error(f"There is no field '{'x' * 100_000}'. Mend it."))
    assert len(text) == 2000
    assert text.startswith("There is no field 'xxx")
    assert text.endswith("xxx'. Mend it.")
