"""Makes the dark twin of a figure, for pages that a reader sees in dark mode.

  python -m experiments.figures.dark experiments/figures/pipelines_cartpole.png

Lightness is turned over and hue stays, so colours mean the same in both.
"""

import pathlib
import sys
from collections.abc import Sequence

import numpy as np
from matplotlib import colors
from PIL import Image

# Of the dark page on which GitHub shows it, and of its text.
_BACKGROUND, _TEXT = 0.07, 0.93
# The least lightness of a curve.
_CURVE = 0.6


def main(argv: Sequence[str] | None = None) -> None:
  """Writes NAME_dark.png beside each NAME.png."""
  for name in sys.argv[1:] if argv is None else argv:
    path = pathlib.Path(name)
    light = np.asarray(Image.open(path).convert("RGB")) / 255
    dark = (255 * turned(light)).round().astype(np.uint8)
    twin = path.with_stem(f"{path.stem}_dark")
    Image.fromarray(dark).save(twin, optimize=True)


def turned(image: np.ndarray) -> np.ndarray:
  """Colours `[..., 3]` in 0 to 1, from a white page to a dark one."""
  most, least = image.max(-1, keepdims=True), image.min(-1, keepdims=True)
  lightness = (most + least) / 2
  pure = colors.rgb_to_hsv(image)[..., :1]
  full = colors.hsv_to_rgb(
    np.concatenate([pure, np.ones_like(pure), np.ones_like(pure)], axis=-1)
  )
  span = 1 - np.abs(2 * lightness - 1)
  saturation = (most - least) / np.where(span > 0, span, 1)
  wanted = _BACKGROUND + (1 - lightness) * (_TEXT - _BACKGROUND)
  # A curve in a full colour that is light already stays so; pale bands do not.
  curve = np.clip((most - least - 0.2) / 0.1, 0, 1)
  wanted = np.maximum(wanted, _CURVE * curve)
  chroma = (1 - np.abs(2 * wanted - 1)) * saturation
  return np.clip((full - 0.5) * chroma + wanted, 0, 1)


if __name__ == "__main__":
  main()
