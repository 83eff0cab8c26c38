"""Draws docs/pictures/overview.png: a photo on its way through the Vision Transformer.

    python docs/pictures/overview.py

The photo is scikit-learn's embedded sample; the patches are the ones that `vit-b16-224` sees.
"""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from sklearn.datasets import load_sample_images

import vitlab

INK, ACCENT, PALE = "#1d2733", "#c2410c", "#eef2f6"


def main() -> None:
    model = vitlab.create("vit-b16-224", image_size=112)  # 7 x 7 patches: few enough to see
    photo = np.asarray(model.preprocess.picture(load_sample_images().images[1]))
    size, side = model.config.patch_size, model.config.grid[0]
    figure = plt.figure(figsize=(12, 4.2), dpi=160)
    figure.patch.set_facecolor("white")

    image = figure.add_axes((0.02, 0.22, 0.2, 0.56))
    image.imshow(photo)
    for k in range(1, side):
        image.axhline(k * size - 0.5, color="white", lw=0.8)
        image.axvline(k * size - 0.5, color="white", lw=0.8)
    image.set_axis_off()
    figure.text(0.12, 0.83, "an image, cut into patches", ha="center", color=INK, fontsize=11)
    figure.text(0.12, 0.13, f"$N = HW/P^2 = {side * side}$ patches", ha="center", color=INK, fontsize=10)

    chosen = [0, 8, 16, 24, 32, 40, 48]
    for row, k in enumerate(chosen):
        y, x = divmod(k, side)
        patch = figure.add_axes((0.27, 0.70 - row * 0.088, 0.03, 0.078))
        patch.imshow(photo[y * size : (y + 1) * size, x * size : (x + 1) * size])
        patch.set_axis_off()

    board = figure.add_axes((0, 0, 1, 1))
    board.set_xlim(0, 1)
    board.set_ylim(0, 1)
    board.set_axis_off()
    board.patch.set_alpha(0)
    tokens = [("class token", ACCENT)] + [(f"$x_{{{k + 1}}} E$", INK) for k in chosen]
    for row, (name, color) in enumerate(tokens):
        y = 0.79 - row * 0.088
        box(board, 0.36, y, 0.085, 0.068, name, color, color if row == 0 else PALE)
        if row:
            arrow(board, (0.305, y + 0.034), (0.355, y + 0.034))
        board.text(0.452, y + 0.034, "+", color=INK, ha="center", va="center", fontsize=10)
        box(board, 0.46, y, 0.045, 0.068, f"$p_{{{row if row == 0 else chosen[row - 1] + 1}}}$", "#3f6212", "#e7f0d8")
        arrow(board, (0.508, y + 0.034), (0.545, y + 0.034))
    figure.text(0.43, 0.89, "projected, with a position each (1)", ha="center", color=INK, fontsize=11)

    box(board, 0.55, 0.15, 0.2, 0.71, "", INK, "#f8fafc")
    for row, (name, color) in enumerate(
        [("layer norm", INK), ("multi-head attention", ACCENT), ("layer norm", INK), ("MLP, GELU", "#1d4ed8")]
    ):
        box(board, 0.57, 0.23 + row * 0.13, 0.16, 0.085, name, color, "white")
    board.text(0.65, 0.79, "encoder layer × 12", ha="center", color=INK, fontsize=11)
    board.text(
        0.65,
        0.175,
        "$z + \\mathrm{MSA}(\\mathrm{LN}\\,z)$, $z + \\mathrm{MLP}(\\mathrm{LN}\\,z)$  (2, 3)",
        ha="center",
        color=INK,
        fontsize=8.5,
    )
    arrow(board, (0.753, 0.5), (0.79, 0.5))
    box(board, 0.795, 0.45, 0.075, 0.1, "class token\nalone (4)", ACCENT, "#fdebe0")
    arrow(board, (0.873, 0.5), (0.905, 0.5))
    box(board, 0.91, 0.45, 0.07, 0.1, "head", INK, PALE)
    board.text(0.945, 0.4, "classes", ha="center", color=INK, fontsize=10)
    figure.savefig(Path(__file__).with_name("overview.png"))


def box(board: plt.Axes, x: float, y: float, width: float, height: float, text: str, ink: str, fill: str) -> None:
    filled = ink == fill
    board.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.002,rounding_size=0.008", ec=ink, fc=fill, lw=1)
    )
    board.text(
        x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9, color="white" if filled else ink
    )


def arrow(board: plt.Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    board.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, color="#64748b", lw=1))


if __name__ == "__main__":
    main()
