"""Makes the dark twin of a figure, for pages in dark mode.

  python -m experiments.figures.dark experiments/figures/pipelines_cartpole.png

Lightness is inverted and hue kept, so that colours mean the same in both.
"""

import pathlib
import sys
from collections.abc import Sequence

import numpy as np
from matplotlib import colors
from PIL import Image

# The lightness of GitHub's dark page and of its text.
_BACKGROUND, _TEXT = 0.07, 0.93
# The minimum lightness of a curve.
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
  """Adapts colours of a white page to a dark one; `[..., 3]` from 0 to 1."""
  high, low = image.max(-1, keepdims=True), image.min(-1, keepdims=True)
  lightness = (high + low) / 2
  hue = colors.rgb_to_hsv(image)[..., :1]
  full_colour = colors.hsv_to_rgb(
    np.concatenate([hue, np.ones_like(hue), np.ones_like(hue)], axis=-1)
  )
  span = 1 - np.abs(2 * lightness - 1)
  saturation = (high - low) / np.where(span > 0, span, 1)
  new_lightness = _BACKGROUND + (1 - lightness) * (_TEXT - _BACKGROUND)
  # Full colours belong to curves and stay light; pale bands become dark.
  is_curve = np.clip((high - low - 0.2) / 0.1, 0, 1)
  new_lightness = np.maximum(new_lightness, _CURVE * is_curve)
  chroma = (1 - np.abs(2 * new_lightness - 1)) * saturation
  return np.clip((full_colour - 0.5) * chroma + new_lightness, 0, 1)


if __name__ == "__main__":
  main()
