"""Hierarchies from every kind of file, and their levels."""

import json
from pathlib import Path

import pytest
import torch

from vitlab.core.errors import DataError
from vitlab.data.hierarchy import Hierarchy, hierarchy_over, read_hierarchy, read_parents
from vitlab.data.sources.published.cifar import COARSE

# thing
#   animal: cat, dog (husky)
#   rock
ABOVE = {"cat": "animal", "husky": "dog", "dog": "animal", "animal": "thing", "rock": "thing", "thing": None}
CLASSES = ("rock", "cat", "husky", "dog")
# the licence, and nouns of WordNet 3.0 with what points upwards and some of what points elsewhere
WORDNET = """\
  1 This software and database is being provided to you, the LICENSEE, by
  2 Princeton University under the following license.
00001740 03 n 01 entity 0 002 ~ 00001930 n 0000 ~ 00002137 n 0000 | that which is perceived | or known
02083346 05 n 02 canine 0 canid 1 002 @ 00001740 n 0000 ~ 02084071 n 0000 | any of various fissiped mammals
02084071 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 003 @ 02083346 n 0000 @ 01317541 n 0000 #m 02083863 n 0000 | x
01317541 05 n 01 domestic_animal 0 001 @ 00001740 n 0000 | any of various animals that have been tamed
09570298 18 n 01 Cerberus 0 001 @i 02084071 n 0000 | three-headed dog guarding the entrance to Hades
"""


def levels(hierarchy: Hierarchy, **options: bool) -> list[set[str]]:
    return [{hierarchy.nodes[node] for node in level.nodes} for level in hierarchy.levels(**options)]


def write(folder: Path, kind: str) -> Path:
    path = folder / {"json": "a.json", "commas": "a.csv", "tabs": "a.txt", "tree": "a.pth"}[kind]
    if kind == "json":
        path.write_text(json.dumps(ABOVE))
    elif kind == "tree":
        names = list(ABOVE)
        chains = []
        for node in names:
            chain = [node]
            while (node := ABOVE[node]) is not None:
                chain.append(node)
            chains.append([names.index(each) for each in chain])
        described = {name: f"a {name}" for name in names}
        torch.save({"class_list": names, "class_tree_list": chains, "class_description": described}, path)
    else:
        between = "," if kind == "commas" else "\t"
        path.write_text("\n\n".join(f"{child}{between}{above}" if above else child for child, above in ABOVE.items()))
    return path


@pytest.mark.parametrize("kind", ["json", "commas", "tabs", "tree"])
def test_every_kind_of_file_says_the_same(kind: str, tmp_path: Path) -> None:
    assert read_parents(write(tmp_path, kind)) == ABOVE
    found = read_hierarchy(str(write(tmp_path, kind)), CLASSES)
    assert found.nodes[:4] == CLASSES
    assert levels(found) == [{"thing"}, {"animal", "rock"}, {"cat", "dog"}, {"husky"}]


def test_levels_by_hand() -> None:
    found = hierarchy_over(CLASSES, ABOVE, where="here")
    top, first, second, third = found.levels()
    assert [level.num_below for level in (top, first, second, third)] == [6, 5, 3, 1]
    names = [[found.nodes[level.nodes[place]] if place >= 0 else None for place in level.of_class]
             for level in (top, first, second, third)]  # fmt: skip
    assert names == [
        ["thing"] * 4,
        ["rock", "animal", "animal", "animal"],
        [None, "cat", "dog", "dog"],
        [None, None, "husky", None],
    ]


def test_a_class_that_nothing_is_below_may_stand_on_all_deeper_levels() -> None:
    found = hierarchy_over(CLASSES, ABOVE, where="here")
    extended = found.levels(extend_leaves=True)
    assert levels(found, extend_leaves=True)[2:] == [{"rock", "cat", "dog"}, {"rock", "cat", "husky"}]
    assert [level.num_below for level in extended] == [6, 5, 4, 3]
    assert extended[3].of_class[3] == -1  # a dog of no known kind is not told from huskies


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("all", [{"thing"}, {"animal", "rock"}, {"cat", "dog"}, {"husky"}]),
        ("branching", [{"thing"}, {"animal", "rock"}, {"cat", "dog"}, {"husky"}]),
        ("none", [{"rock", "cat", "dog"}, {"husky"}]),
    ],
)
def test_nodes_that_are_no_classes(inner: str, expected: list[set[str]]) -> None:
    found = hierarchy_over(CLASSES, ABOVE, where="here", inner=inner)  # pyright: ignore[reportArgumentType]
    assert levels(found) == expected


def test_nodes_with_one_node_below_say_nothing() -> None:
    found = hierarchy_over(("rock", "husky"), ABOVE, where="here", inner="branching")
    assert levels(found) == [{"thing"}, {"rock", "husky"}]
    assert levels(hierarchy_over(("rock", "husky"), ABOVE, where="here")) == [
        {"thing"}, {"animal", "rock"}, {"dog"}, {"husky"},
    ]  # fmt: skip


def test_wordnet(tmp_path: Path) -> None:
    """The first of several hypernyms; what an instance is of; ids within a class's name."""
    (tmp_path / "data.noun").write_text(WORDNET)
    found = read_parents(tmp_path / "data.noun")
    assert found == {
        "n00001740": None,
        "n02083346": "n00001740",
        "n02084071": "n02083346",
        "n01317541": "n00001740",
        "n09570298": "n02084071",
    }
    over = read_hierarchy(str(tmp_path / "data.noun"), ("dog (n02084071)", "n01317541"))
    assert levels(over) == [{"n00001740"}, {"n02083346", "n01317541"}, {"n02084071"}]


# the coarse label of each fine one in the published files, both in alphabetical order
PUBLISHED = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10,
    12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16,
    12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14,
    13,
)  # fmt: skip


def test_cifar100s_coarse_classes() -> None:
    """Twenty of five each; names as the files have them, or with spaces."""
    above = {name: coarse for coarse, names in COARSE.items() for name in names}
    assert [sorted(COARSE).index(above[name]) for name in sorted(above)] == list(PUBLISHED)
    fine = [name for names in COARSE.values() for name in names]
    assert (len(COARSE), len(set(fine))) == (20, 100)
    assert {len(names) for names in COARSE.values()} == {5}
    found = read_hierarchy("cifar100", [name.replace("_", " ").title() for name in sorted(fine)])
    assert [len(level.nodes) for level in found.levels()] == [20, 100]
    assert found.nodes[found.parents[sorted(fine).index("willow_tree")]] == "trees"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", '{"cat": "animal", "dgo": "animal"}', r"where the class 'dog' belongs.*Did you mean dgo\?"),
        ("a.csv", "mouse,animal", r"where the class 'cat' and 1 more belongs: add what is above it"),
        ("a.csv", "cat,animal\ndog,animal\nanimal,cat", "goes in a circle: cat is below animal is below cat"),
        ("a.csv", "cat,cat\ndog,cat", "goes in a circle: cat is below cat"),
        ("a.csv", "cat,animal\ncat,pet\ndog,pet", r"line 2: 'cat' is below 'animal' and 'pet'"),
        ("a.csv", "cat,animal,thing", r"line 1: 'cat,animal,thing' is not a name and the one above it"),
        ("a.csv", ",animal", r"line 1: ',animal' is not a name and"),
        ("a.json", '{"cat": ["animal"]}', r"above 'cat' is \['animal'\]; a name or null is expected"),
        ("a.json", '{"cat": ', "is no JSON"),
        ("a.pth", "nothing", "is not ImageNet-21K-P's tree"),
        ("data.noun", "00001740 03 n 09 entity\n", "is not a line of WordNet's data.noun"),
        ("a.csv", "CAT\ncat\nDog", "two classes"),
    ],
)
def test_what_is_wrong_is_one_sentence(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    classes = ("cat", "Cat ") if words == "two classes" else ("cat", "dog")
    with pytest.raises(DataError, match=words) as caught:
        read_hierarchy(str(tmp_path / name), classes)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no hierarchy .*: name a file that says what is above each class"):
        read_hierarchy(str(tmp_path / "gone.csv"), ("a", "b"))
    with pytest.raises(DataError, match="Cannot read the hierarchy"):
        read_hierarchy(str(tmp_path), ("a", "b"))
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe,\xff")
    with pytest.raises(DataError, match="is not a text in UTF-8"):
        read_hierarchy(str(tmp_path / "a.csv"), ("a", "b"))


def test_nothing_in_a_tree_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(tmp_path / "ran"),)

    torch.save({"class_list": ["a"], "class_tree_list": [[0]], "more": Evil()}, tmp_path / "a.pth")
    with pytest.raises(DataError, match="is not ImageNet-21K-P's tree"):
        read_hierarchy(str(tmp_path / "a.pth"), ("a",))
    assert not (tmp_path / "ran").exists()
