"""The walk that residual networks share: from a stem's map through units in a row, and a mean over places."""

from abc import abstractmethod
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from vitlab.models.contract import Model, Tokens, need_all_places
from vitlab.models.resnet import to_map, to_tokens
from vitlab.models.stages import recomputed


class UnitNet(Model):
    """A stem, `units` from map to map, the mean over places, a linear classifier; the map is the tokens."""

    takes_subsets: ClassVar[bool] = False  # a convolution needs the whole map
    after_units: ClassVar[tuple[str, ...]] = ("head.",)  # how the names of parameters behind the units begin

    units: nn.ModuleList

    @abstractmethod
    def stem(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d y x"]:
        """The map that the first unit takes."""

    def finish(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
        """What is done to the last unit's map before the mean."""
        return x

    @property
    def num_layers(self) -> int:
        return len(self.units)

    def layer_of(self, name: str) -> int:
        if name.startswith("units."):
            return int(name.split(".")[1]) + 1
        return self.num_layers + 1 if name.startswith(self.after_units) else 0

    def _through(self, unit: nn.Module, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b e y x"]:
        return recomputed(unit, x) if self.config.checkpoint_blocks and self.training else unit(x)

    def embed(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        return _tokens(self.stem(images))

    def encode(self, tokens: Tokens) -> Tokens:
        need_all_places(tokens, type(self).__name__)
        x = to_map(tokens.values, tokens.grid)
        for unit in self.units:
            x = self._through(unit, x)
        return _tokens(self.finish(x))

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        return tokens.values.mean(dim=1)

    def features(self, images: Float[Tensor, "b c h w"]) -> list[Tokens]:
        maps = [self.stem(images)]
        for unit in self.units:
            maps.append(self._through(unit, maps[-1]))
        return [_tokens(x) for x in maps]


def _tokens(x: Float[Tensor, "b d h w"]) -> Tokens:
    return Tokens(values=to_tokens(x), grid=(x.shape[-2], x.shape[-1]))
