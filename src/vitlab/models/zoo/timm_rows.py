"""Rows for models of timm's, made when they are asked for; EfficientNet's have published parameter counts."""

import fnmatch

from vitlab.core.peers import import_timm
from vitlab.models.timm.build import PREFIX, known
from vitlab.models.zoo.row import TIMM, ZooRow

# architecture, published parameters (EfficientNet, arXiv 1905.11946; L2: Noisy Student, arXiv 1911.04252)
EFFICIENTNETS: dict[str, str] = {
    "efficientnet_b0": "5.29M",
    "efficientnet_b1": "7.79M",
    "efficientnet_b2": "9.11M",
    "efficientnet_b3": "12.23M",
    "efficientnet_b4": "19.34M",
    "efficientnet_b5": "30.39M",
    "efficientnet_b6": "43.04M",
    "efficientnet_b7": "66.35M",
    "efficientnet_l2": "480.31M",
}


def timm_row(name: str) -> ZooRow:
    """The row of 'timm:<name>'; the published count is empty where this table has none."""
    name = name.removeprefix(PREFIX)
    facts = known(name)
    published = EFFICIENTNETS.get(name.partition(".")[0].removeprefix("tf_"), "")
    config = {"name": name, "image_size": facts.image_size, "num_classes": facts.num_classes}
    source = TIMM if published else "timm"
    return ZooRow(PREFIX + name, "timm", config, published, "all", source)


def timm_rows(glob: str) -> list[ZooRow]:
    """The rows whose names, with 'timm:' in front, match a glob."""
    names = import_timm().list_models()
    return [timm_row(name) for name in names if fnmatch.fnmatchcase(PREFIX + name.lower(), glob)]
