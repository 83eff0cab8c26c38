"""Tagged choices on the command line, read in two passes: `--objective mae` first, then `--objective.ratio 0.75`."""

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitlab.cli.parsing import RECIPE_FLAGS, options_of, read, refuse
from vitlab.cli.terminal import say
from vitlab.core.config import Choice, from_dict, to_dict
from vitlab.core.errors import ConfigError, Error
from vitlab.objectives import OBJECTIVES
from vitlab.tasks import TASKS
from vitlab.training.recipe import GIVEN, RENAMED, Recipe

LR = "--optimizer.lr"
SHORT = {"--epochs": ("--schedule.total", "{} epochs"), "--lr": (LR, "{}")}
# options of verbs that choose a recipe, and what they set in it
FIELDS = {
    "--lr": LR,
    "--steps": "--schedule.total",
    "--epochs": "--schedule.total",
    "--lora": "--model.lora",
    "--image-size": "--model.image-size",
}
CHOSEN_BY = {"--data.source": "--data", "--model.source": "--model"}  # what such a recipe follows from
WIDTH = 110  # characters of a line of help
REGISTRIES = {"task": TASKS, "objective": OBJECTIVES}


@dataclass(frozen=True)
class RecipeType:
    """A recipe whose choices are made: a dataclass with their options as fields, and what it is by default."""

    type: Any
    default: Any
    names: dict[str, str]

    def chosen(self, given: Any) -> Recipe:
        """The recipe of what was parsed."""
        fields = {field.name: getattr(given, field.name) for field in dataclasses.fields(Recipe)}
        for name, tag in self.names.items():
            fields[name] = Choice(tag, to_dict(fields[name]))
        return Recipe(**fields)

    def options(self, beside: Iterable[str] = ()) -> list[str]:
        """The names of all options, those first that are not the recipe's."""
        return [*beside, *options_of(self.type), *self.names, *(name.lstrip("-") for name in SHORT)]

    def explained(self) -> str:
        """Those of the options that are no fields of the type, for its help."""
        told = {
            f"--{name}": f"{', '.join(REGISTRIES[name].names())} or FILE.py:NAME; its options are listed where it is"
            f" given (default: {tag})"
            for name, tag in self.names.items()
        }
        told |= {"--epochs": 'short for --schedule.total "N epochs"'}
        told |= {"--lr": f"short for {LR}; auto finds it by a range test before the first step"}
        lines = [
            textwrap.fill(text, WIDTH, initial_indent=f"  {name:<13}", subsequent_indent=" " * 15)
            for name, text in told.items()
        ]
        return "\n".join(["Besides the options below:", *lines])


def with_choices(recipe: Recipe, arguments: Sequence[str]) -> tuple[RecipeType, list[str]]:
    """The type of a recipe for the choices that arguments make, and the arguments that are left."""
    rest, names, fields = list(arguments), dict[str, str](), list[Any]()
    values = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(Recipe)}
    for name, registry in REGISTRIES.items():
        before: Choice = values[name]
        tag = _taken(rest, f"--{name}") or before.name
        if tag.startswith(GIVEN):
            raise Error(f"This run's {name} ({tag.removeprefix(GIVEN)}) was given as an object: resume it from Python.")
        kind = registry.find(tag)
        options = before.options if tag == before.name else {}
        names[name], values[name] = tag, from_dict(kind.options, options, where=name)
        fields.append((name, kind.options, dataclasses.field(default=values[name])))
    kind = dataclasses.make_dataclass("Recipe", fields, bases=(Recipe,), frozen=True, kw_only=True)
    kind.__doc__ = Recipe.__doc__
    return RecipeType(kind, kind(**values), names), rest


def parse_recipe(
    recipe: Recipe, arguments: Sequence[str], *, prog: str, beside: Iterable[str] = ()
) -> tuple[Recipe, list[str]]:
    """A recipe with the fields that options change, and the words that are no option's; `beside` are other options."""
    choices, rest = with_choices(recipe, current_names(arguments))
    given, left = read(choices.type, rest, prog=prog, config=RECIPE_FLAGS, default=choices.default, add_help=False)
    refuse([text for text in left if text.startswith("-")], choices.options(beside), prog=prog)
    return choices.chosen(given), left


def data_and_changes(
    data: str | None, draft: Recipe, arguments: Sequence[str], options: Iterable[str], *, prog: str, missing: str
) -> tuple[str, Callable[[Recipe], Recipe]]:
    """The data that is named by an option or as the first word, and what the other arguments change in a recipe.

    A wrong option or word is said at once, by a `draft` of the recipe, before anything is read.
    """
    beside, arguments = list(options), current_names(arguments)
    _, words = parse_recipe(draft, arguments, prog=prog, beside=beside)
    found = words.pop(0) if data is None and words else data
    refuse(words, beside, prog=f"{prog.rpartition(' ')[0]} {found}")
    if found is None:
        raise ConfigError(missing)
    return found, lambda recipe: parse_recipe(recipe, arguments, prog=prog)[0] if arguments else recipe


def refuse_twice(given: Mapping[str, object], arguments: Sequence[str]) -> None:
    """An error where an option of a verb's own and the recipe's field that it stands for are both given.

    Data and model are the verb's alone.
    """
    fields = {text.partition("=")[0].replace("_", "-") for text in arguments if text.startswith("--")}
    for field, option in CHOSEN_BY.items():
        if field in fields:
            raise ConfigError(f"Give {option} instead of {field}: the recipe follows from it.")
    for option, value in given.items():
        if value is not None and (field := FIELDS[option]) in fields:
            raise ConfigError(f"Give {option} or {field}, not both.")


def takes_auto(arguments: list[str]) -> bool:
    """Whether the learning rate is to be found by a range test; `auto` is taken out of the arguments."""
    value = _taken(arguments, LR)
    if value not in (None, "auto"):
        arguments += [LR, value]
    return value == "auto"


def current_names(arguments: Sequence[str]) -> list[str]:
    """The arguments with short names written out, and with old options under their new names, each with a warning."""
    new, rest = list[str](), iter(arguments)
    for text in rest:
        option, equals, value = text.partition("=")
        if option in SHORT:
            value = value if equals else next(rest, "")
            if not value or value.startswith("--"):
                raise Error(f"{option} needs a value.")
            new += [SHORT[option][0], SHORT[option][1].format(value)]
        elif (field := option.removeprefix("--").replace("-", "_")) != option and _renamed(field) != field:
            named = f"--{_renamed(field).replace('_', '-')}"
            say(f"vitlab: {option} is now {named}.")
            new.append(f"{named}{equals}{value}")
        elif option.startswith("--teacher."):
            field = option.removeprefix("--teacher.")
            named = f"--objective.{'teacher' if field == 'source' else field}"
            say(f"vitlab: {option} is now --objective distillation {named}.")
            new += ["--objective", "distillation", f"{named}{equals}{value}"]
        else:
            new.append(text)
    return new


def _renamed(field: str) -> str:
    """A field's name as it is now: by itself, or by what it is a part of."""
    head, dot, tail = field.partition(".")
    return RENAMED.get(field) or f"{RENAMED.get(head, head)}{dot}{tail}"


def _taken(arguments: list[str], option: str) -> str | None:
    """The value of an option, the last where it is given several times; it is taken out of the arguments."""
    found: str | None = None
    for text in [text for text in arguments if text.startswith(f"{option}=")]:
        arguments.remove(text)
        found = text.partition("=")[2]
    while option in arguments:
        place = arguments.index(option)
        if place + 1 == len(arguments) or arguments[place + 1].startswith("--"):
            raise Error(f"{option} needs a value.")
        found = arguments[place + 1]
        del arguments[place : place + 2]
    return found
