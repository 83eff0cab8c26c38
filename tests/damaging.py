"""Files with a bit that flipped."""

import random


def flipped(content: bytes, rng: random.Random) -> bytes:
    """The bytes with one bit of them changed."""
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
