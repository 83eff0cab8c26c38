import json
import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitlab.core.config import Choice, check_fields, from_dict, replace, to_dict
from vitlab.core.errors import ConfigError, Error
from vitlab.core.preprocess import Preprocess
from vitlab.models.vit import ViTConfig


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    name: str | None = None


@dataclass(frozen=True)
class Outer:
    size: tuple[int, int]
    kind: Literal["a", "b"] = "a"
    flag: bool = False
    inner: Inner = Inner()
    many: tuple[float, ...] = ()
    count: int | None = None


finite = st.floats(allow_nan=False, allow_infinity=False)
inners = st.builds(Inner, rate=finite, name=st.none() | st.text())
outers = st.builds(
    Outer,
    size=st.tuples(st.integers(), st.integers()),
    kind=st.sampled_from(["a", "b"]),
    flag=st.booleans(),
    inner=inners,
    many=st.lists(finite).map(tuple),
    count=st.none() | st.integers(),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(), inside, max_size=3),
    max_leaves=6,
)


@given(outers)
def test_a_config_comes_back_from_json_as_it_was(config: Outer) -> None:
    assert from_dict(Outer, json.loads(json.dumps(to_dict(config))), where="test") == config


@given(outers, outers)
def test_replacing_every_field_gives_the_other_config(one: Outer, other: Outer) -> None:
    assert replace(one, to_dict(other), where="test") == other


@given(st.dictionaries(st.sampled_from([*ViTConfig.__dataclass_fields__]), json_values, max_size=3))
def test_any_json_is_a_vit_config_or_an_error_of_ours(data: dict[str, Any]) -> None:
    try:
        config = from_dict(ViTConfig, data, where="config.json")
    except Error as error:
        assert str(error)  # noqa: PT017
    else:
        assert from_dict(ViTConfig, to_dict(config), where="again") == config or math.nan in to_dict(config).values()


@given(st.dictionaries(st.sampled_from([*Preprocess.__dataclass_fields__]), json_values, max_size=3))
def test_any_json_is_a_preprocess_or_an_error_of_ours(data: dict[str, Any]) -> None:
    try:
        spec = from_dict(Preprocess, data, where="preprocess.json")
    except Error as error:
        assert str(error)  # noqa: PT017
    else:
        assert from_dict(Preprocess, to_dict(spec), where="again") == spec


def test_whole_numbers_become_floats_where_floats_are_wanted() -> None:
    inner = from_dict(Inner, {"rate": 1}, where="test")
    assert inner.rate == 1.0
    assert type(inner.rate) is float


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "here: the field 'size' is missing."),
        ({"size": [1, 2], "knd": "a"}, "here: there is no field 'knd'. Did you mean kind?"),
        (
            {"size": [1, 2], "zzzzzz": 1},
            "here: there is no field 'zzzzzz'. Known fields: size, kind, flag, inner, many, count.",
        ),
        ({"size": [1, 2], "kind": "aa"}, "here: kind must be a | b, not 'aa'. Did you mean a?"),
        ({"size": [1, 2], "flag": 1}, "here: flag must be true or false, not 1."),
        ({"size": [1, 2], "count": True}, "here: count must be a whole number or null, not True."),
        ({"size": [1, 2], "count": 1.5}, "here: count must be a whole number or null, not 1.5."),
        ({"size": [1]}, "here: size must be a list of 2, each a whole number, not [1]."),
        ({"size": 224}, "here: size must be a list of 2, each a whole number, not 224."),
        ({"size": [1, 2], "inner": 3}, "here: inner must be Inner, not 3."),
        ({"size": [1, 2], "inner": {"rat": 3}}, "here: inner: there is no field 'rat'. Did you mean rate?"),
        ({"size": [1, 2], "inner": {"rate": "high"}}, "here: inner: rate must be a number, not 'high'."),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(Outer, data, where="here")
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (Outer((1, 2), kind=cast("Any", "c")), "kind must be a | b, not 'c'."),
        (Outer((1, 2), flag=cast("Any", 1)), "flag must be true or false, not 1."),
        (Outer((1, 2), inner=cast("Any", None)), "inner must be Inner, not None."),
    ],
)
def test_what_a_caller_put_into_a_dataclass_is_checked(config: Outer, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_fields(config)
    assert str(caught.value) == sentence
    check_fields(Outer((1, 2)))


def test_numbers_of_numpy_are_numbers() -> None:
    config = replace(Outer((1, 2)), {"size": (np.int64(3), 4), "many": (np.float32(0.5), np.int32(2))}, where="here")
    assert json.loads(json.dumps(to_dict(config)))["size"] == [3, 4]
    assert [type(value) for value in (*config.size, *config.many)] == [int, int, float, float]
    with pytest.raises(ConfigError, match="flag must be true or false"):
        replace(config, {"flag": np.int64(1)}, where="here")


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(ConfigError, match="rate must be a number"):
        from_dict(Inner, {"rate": 10**400}, where="here")


def test_replace_refuses_what_from_dict_refuses() -> None:
    with pytest.raises(ConfigError, match="Did you mean size"):
        replace(Outer((1, 2)), {"sise": [1, 2]}, where="here")


@dataclass(frozen=True)
class Choosing:
    chosen: Choice


@pytest.mark.parametrize(
    ("choice", "plain"),
    [
        (Choice("plain"), {"name": "plain"}),
        (Choice("masked", {"ratio": 0.75, "sizes": [8, 16]}), {"name": "masked", "ratio": 0.75, "sizes": [8, 16]}),
        (Choice("mine.py:ONE", {"inner": {"rate": 1}}), {"name": "mine.py:ONE", "inner": {"rate": 1}}),
    ],
)
def test_a_choice_is_flat_in_json(choice: Choice, plain: dict[str, Any]) -> None:
    assert to_dict(Choosing(choice)) == {"chosen": plain}
    assert from_dict(Choosing, json.loads(json.dumps({"chosen": plain})), where="here") == Choosing(choice)


def test_a_choices_options_become_plain_values() -> None:
    assert to_dict(Choosing(Choice("x", {"inner": Inner(2.0), "many": (1, 2)})))["chosen"] == {
        "name": "x",
        "inner": {"rate": 2.0, "name": None},
        "many": [1, 2],
    }


def test_a_choice_may_be_its_name_alone() -> None:
    assert from_dict(Choosing, {"chosen": "masked"}, where="here").chosen == Choice("masked")


@pytest.mark.parametrize("wrong", [{}, {"ratio": 1}, {"name": 3}, 5, None, ["masked"]])
def test_what_names_nothing_is_no_choice(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"^here: chosen must be Choice, not "):
        from_dict(Choosing, {"chosen": wrong}, where="here")
