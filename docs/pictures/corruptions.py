"""Draws docs/pictures/corruptions.png: a photo under each corruption, at severities 1, 3 and 5.

    python docs/pictures/corruptions.py

The photo is scikit-learn's embedded sample.
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_images

from vitlab.core.preprocess import Preprocess
from vitlab.data.corruptions import FUNCTIONS, corrupt

SIDE, SHOWN, TEXT, COLUMNS = 32, 96, 16, 2  # px


def main() -> None:
    spec = Preprocess(size=(SIDE, SIDE), resize="shortest")
    photo = np.asarray(spec.picture(load_sample_images().images[0]))
    rows = -(-len(FUNCTIONS) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * 4 * (SHOWN + 2) + 12, rows * (SHOWN + TEXT + 4)), "white")
    for place, name in enumerate(FUNCTIONS):
        left, top = place // rows * (4 * (SHOWN + 2) + 12), place % rows * (SHOWN + TEXT + 4)
        ImageDraw.Draw(sheet).text((left, top), name.replace("_", " "), "black")
        pictures = [photo, *(corrupt(photo, name, severity, number=1) for severity in (1, 3, 5))]
        for i, pixels in enumerate(pictures):
            large = Image.fromarray(pixels).resize((SHOWN, SHOWN), Image.Resampling.NEAREST)
            sheet.paste(large, (left + i * (SHOWN + 2), top + TEXT))
    sheet.save(Path(__file__).with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main()
