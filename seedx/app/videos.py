"""Videos of a policy, from the frames that its environment renders."""

import itertools
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs import registration

from seedx import envs, types
from seedx.acting import evaluator
from seedx.app.runs import policies
from seedx.envs import rendering

# The rate for an environment without `render_fps`.
_FRAMES_PER_SECOND = 30.0
_EMULATOR_FRAMES_PER_SECOND = 60.0
# Longer videos are cut.
_MAX_SECONDS = 60


def check(path: str, env: envs.Config) -> None:
  """Checks that a video can be recorded, before anything is played.

  Raises:
    types.ConfigError: the format is unknown, its ffmpeg is missing, the
      directory does not exist, or the environment cannot be rendered here.
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
  rendering.check_render(env)


def record(
  policy: policies.Policy, player: evaluator.Evaluator, seed: int, path: str
) -> int:
  """Plays an episode and writes its frames to a video file; see `check`.

  The video ends after a minute if the episode is longer.

  Returns:
    The number of frames.

  Raises:
    types.ConfigError: the file is not writable.
  """
  environment = envs.make(policy.env, 1, seed=seed, render=True)
  rate = frames_per_second(policy.env.env, environment.spec.frames_per_step)
  count = 0

  def frames() -> Iterator[np.ndarray]:
    nonlocal count
    for rows in player.steps(policy.acting, seed, environment):
      count += 1
      yield environment.render()
      if count >= _MAX_SECONDS * rate or not np.isnan(rows.episode_return[0]):
        return

  write = _write_gif if path.lower().endswith(".gif") else _write_mp4
  try:
    write(path, frames(), rate)
  except OSError as error:
    raise types.ConfigError(f"cannot write {path!r} ({error})") from error
  finally:
    environment.close()
  return count


def frames_per_second(env: str, frames_per_step: int = 1) -> float:
  """Returns the frame rate of an environment: its `render_fps`, if it has one.

  For an emulator with several frames in an env step, this is the rate of steps.
  """
  if frames_per_step > 1:
    return _EMULATOR_FRAMES_PER_SECOND / frames_per_step
  spec = gymnasium.registry.get(env)
  if spec is None or spec.entry_point is None:
    return _FRAMES_PER_SECOND
  try:
    env_class: Any = registration.load_env_creator(str(spec.entry_point))
    return float(env_class.metadata["render_fps"])
  except Exception:  # The environment's packages are missing or broken.
    return _FRAMES_PER_SECOND


def _write_gif(path: str, frames: Iterator[np.ndarray], rate: float) -> None:
  from PIL import Image  # Only .gif files need Pillow.

  images = map(Image.fromarray, frames)
  next(images).save(
    path,
    save_all=True,
    append_images=images,
    duration=round(1000 / rate),
    loop=0,
  )


def _write_mp4(path: str, frames: Iterator[np.ndarray], rate: float) -> None:
  first = next(frames)
  height, width, _ = first.shape
  command = [_ffmpeg(), "-y", "-loglevel", "error"]
  command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
  command += ["-r", str(rate), "-i", "-"]
  # Players expect even sizes, and colours at half the resolution.
  command += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]
  process = subprocess.Popen([*command, path], stdin=subprocess.PIPE)
  assert process.stdin is not None
  with process.stdin as stdin:
    for frame in itertools.chain([first], frames):
      stdin.write(np.ascontiguousarray(frame).data)
  if process.wait():
    raise types.ConfigError(f"cannot write {path!r}; see ffmpeg's error above")


def _ffmpeg() -> str:
  """Returns the path of ffmpeg, from PATH or the package imageio-ffmpeg."""
  path = shutil.which("ffmpeg")
  if path:
    return path
  try:
    import imageio_ffmpeg

    return imageio_ffmpeg.get_ffmpeg_exe()
  except (ImportError, RuntimeError) as error:
    raise types.ConfigError(
      "expected ffmpeg for a --video of .mp4, found none; `pip install"
      " imageio-ffmpeg` installs it, and a .gif needs no ffmpeg"
    ) from error
