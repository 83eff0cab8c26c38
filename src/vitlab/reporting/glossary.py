"""The terms of a report, each in a sentence that needs no other term."""

from vitlab.reporting.markup import Html, tag

GLOSSARY: dict[str, str] = {
    "95% interval": "The range in which the true value most likely lies. A number from few pictures is uncertain: with"
    " other pictures of the same kind it would have come out a little differently.",
    "accuracy": "How many of the answers are right, of all pictures that were asked about.",
    "all labels right": "Pictures for which every label was given that belongs to them, and no other.",
    "attention": "How much each patch of a picture counts for another one, and in the end for the answer.",
    "balanced accuracy": "The share of right answers for each class by itself, then the mean over the classes: a rare"
    " class counts as much as a common one.",
    "calibration error": "How far what the model says of its own certainty is from how often it is right. At 0% it is"
    " right nine times in ten where it says that it is 90% sure.",
    "class": "One of the kinds of pictures that are to be told apart.",
    "confusion matrix": "A table of what pictures are, row by row, and what the model took them for, column by column.",
    "epoch": "One pass over all training pictures.",
    "FLOPs": "Additions and multiplications: the work that a computer has to do. An exaFLOP is a billion billion.",
    "held-out pictures": "Pictures that were kept apart and not learned from. Only they can tell whether a model"
    " understood something or learned it by heart.",
    "learning rate": "How large the steps are by which the model is changed. It usually rises at the beginning, and"
    " falls towards the end so that the model settles.",
    "log loss": "A penalty for wrong answers, the higher the surer the model was of them; lower is better.",
    "loss": "The number that training makes smaller: how wrong the answers are, and how sure of them the model was.",
    "mAP": "Mean average precision: for each label, how well the pictures that have it are ranked before those that do"
    " not, then the mean over the labels. 100% is perfect.",
    "parameters": "The numbers inside the model that training adjusts.",
    "patch": "A small square of the picture. The model cuts a picture into patches and compares them with each other.",
    "step": "One change of the model, after looking at a handful of pictures.",
    "test pictures": "Held-out pictures that were looked at only once, when training was over.",
    "top-5": "How often the right answer is among the model's first five.",
    "validation pictures": "Held-out pictures by which the best state of the model was chosen. Numbers on them are"
    " therefore a little flattering.",
}


def term(name: str, shown: str | None = None) -> Html:
    """A term with its explanation on hover, and a way to the list of them."""
    return tag("a", tag("abbr", shown or name, title=GLOSSARY[name]), class_="term", href=f"#{anchor(name)}")


def anchor(name: str) -> str:
    """The name of a term's place on the page."""
    return f"term-{''.join(c if c.isalnum() else '-' for c in name.lower())}"
