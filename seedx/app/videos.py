"""Videos of a policy: the frames that an environment renders."""

import itertools
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
from PIL import Image

from seedx import envs, types
from seedx.acting import evaluator
from seedx.app import policies

_FRAMES_PER_SECOND = 30
# The first minute of a long episode.
_MOST_FRAMES = 60 * _FRAMES_PER_SECOND


def check(path: str, env: envs.Config) -> None:
  """Checks that a video can be made, before anything is played.

  Raises:
    types.ConfigError: the format is unknown, there is no ffmpeg for it, no
      such directory, or the environment cannot be rendered here.
  """
  suffix = pathlib.Path(path).suffix.lower()
  if suffix not in (".gif", ".mp4"):
    raise types.ConfigError(
      f"expected a --video that ends in .gif or .mp4, found {path!r}"
    )
  if not pathlib.Path(path).absolute().parent.is_dir():
    raise types.ConfigError(
      f"expected a --video in a directory that exists, found {path!r}"
    )
  if suffix == ".mp4":
    _ffmpeg()
  envs.check_render(env)


def record(
  policy: policies.Policy, player: evaluator.Evaluator, seed: int, path: str
) -> int:
  """Plays an episode and writes its frames.

  Args:
    policy: that plays.
    player: of the policy's agent.
    seed: of the environment.
    path: of the video; see `check`.

  Returns:
    How many frames it has.

  Raises:
    types.ConfigError: the file cannot be written.
  """
  environment = envs.make(policy.env, 1, seed=seed, render=True)

  def episode() -> Iterator[np.ndarray]:
    for rows in player.steps(policy.acting, seed, environment):
      yield environment.render()
      if not np.isnan(rows.episode_return[0]):
        return

  frames = itertools.islice(episode(), _MOST_FRAMES)
  try:
    if path.lower().endswith(".gif"):
      return _write_gif(path, frames)
    return _write_mp4(path, frames)
  except OSError as error:
    raise types.ConfigError(f"cannot write {path!r} ({error})") from error
  finally:
    environment.close()


def _write_gif(path: str, frames: Iterator[np.ndarray]) -> int:
  counts = itertools.count(1)
  images = (Image.fromarray(frame) for frame in frames if next(counts))
  next(images).save(
    path,
    save_all=True,
    append_images=images,
    duration=1000 // _FRAMES_PER_SECOND,
    loop=0,
  )
  return next(counts) - 1


def _write_mp4(path: str, frames: Iterator[np.ndarray]) -> int:
  first = next(frames)
  height, width, _ = first.shape
  command = [_ffmpeg(), "-y", "-loglevel", "error"]
  command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
  command += ["-r", str(_FRAMES_PER_SECOND), "-i", "-"]
  # Players want even sizes, and colours at half the resolution.
  command += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]
  process = subprocess.Popen([*command, path], stdin=subprocess.PIPE)
  assert process.stdin is not None
  count = 0
  with process.stdin as stdin:
    for frame in itertools.chain([first], frames):
      stdin.write(np.ascontiguousarray(frame).data)
      count += 1
  if process.wait():
    raise types.ConfigError(f"cannot write {path!r}: see ffmpeg's words above")
  return count


def _ffmpeg() -> str:
  """The program, from PATH or from the package imageio-ffmpeg."""
  found = shutil.which("ffmpeg")
  if found:
    return found
  try:
    import imageio_ffmpeg

    return imageio_ffmpeg.get_ffmpeg_exe()
  except (ImportError, RuntimeError) as error:
    raise types.ConfigError(
      "expected ffmpeg for a --video of .mp4, found none: `pip install"
      " imageio-ffmpeg` brings it; a .gif needs nothing"
    ) from error
