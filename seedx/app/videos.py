"""Videos of a policy, from the frames that its environment renders."""

import contextlib
import io
import itertools
import math
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any

import gymnasium
import numpy as np
from gymnasium.envs import registration

from seedx import envs, metrics, types
from seedx.acting import evaluator
from seedx.envs import rendering

# The rate for an environment without `render_fps`.
_FRAMES_PER_SECOND = 30.0
_EMULATOR_FRAMES_PER_SECOND = 60.0
# Longer videos are cut.
_MAX_SECONDS = 60
# Limits of a video during training, which is in memory.
_SMALL_SECONDS = 30
_SMALL_FRAMES_PER_SECOND = 15
_SMALL_SIDE = 320


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
  env: envs.Config,
  acting: types.Tree,
  player: evaluator.Evaluator,
  seed: int,
  path: str,
) -> int:
  """Plays an episode and writes its frames to a video file; see `check`.

  The video ends after a minute if the episode is longer.

  Returns:
    The number of frames.

  Raises:
    types.ConfigError: the file is not writable.
  """
  environment = envs.make(env, 1, seed=seed, render=True)
  rate = frames_per_second(env)
  maximum, count = math.ceil(_MAX_SECONDS * rate), 0

  def frames() -> Iterator[np.ndarray]:
    nonlocal count
    for frame in _frames(player, acting, seed, environment, maximum):
      count += 1
      yield frame

  target = pathlib.Path(path)
  name = f"video{target.suffix.lower()}"
  write = _write_gif if name.endswith(".gif") else _write_mp4
  try:
    # A video that cannot be finished leaves no file, and replaces none.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
      write(os.path.join(folder, name), frames(), rate)
      os.replace(os.path.join(folder, name), path)
  except OSError as error:
    raise types.ConfigError(f"cannot write {path!r} ({error})") from error
  finally:
    environment.close()
  return count


def record_small(
  env: envs.Config,
  acting: types.Tree,
  player: evaluator.Evaluator,
  seed: int,
  env_steps: int,
  stop: threading.Event,
) -> metrics.Video:
  """Plays an episode during training, and returns its video.

  The video has at most 15 frames per second, whose longer side has at most 320
  pixels, and ends after 30 seconds or when `stop` is set.

  Args:
    env: the environment, which can be rendered.
    acting: acting parameters.
    player: evaluator whose steps are played.
    seed: seed of the environment and of the agent's random numbers.
    env_steps: env steps of the run at the checkpoint.
    stop: event that ends the video early.
  """
  environment = envs.make(env, 1, seed=seed, render=True)
  with contextlib.closing(environment):
    rate = frames_per_second(env)
    stride = math.ceil(rate / _SMALL_FRAMES_PER_SECOND)
    maximum = math.ceil(_SMALL_SECONDS * rate)
    frames = _frames(
      player, acting, seed, environment, maximum, stride, stop.is_set
    )
    content = io.BytesIO()
    size = _write_gif(content, frames, rate / stride, _SMALL_SIDE)
  return metrics.Video(env_steps, size, content.getvalue())


def _frames(
  player: evaluator.Evaluator,
  acting: types.Tree,
  seed: int,
  environment: envs.Environment,
  maximum: int,
  stride: int = 1,
  stopped: Callable[[], bool] = lambda: False,
) -> Iterator[np.ndarray]:
  """Yields every `stride`th frame of an episode of at most `maximum` steps.

  The last frame is that at the end, or the first one after `stopped`.
  """
  for step, rows in enumerate(player.steps(acting, seed, environment)):
    is_cut = step + 1 >= maximum or stopped()
    has_ended = is_cut or not np.isnan(rows.episode_return[0])
    if step % stride == 0 or has_ended:
      yield environment.render()
    if has_ended:
      return


def frames_per_second(env: envs.Config) -> float:
  """Returns the frame rate of an environment: its `render_fps`, if it has one.

  For an emulator with several frames in an env step, this is the rate of steps.
  """
  of_env = envs.spec(env)
  if of_env.frames_per_step > 1:
    return _EMULATOR_FRAMES_PER_SECOND / of_env.frames_per_step
  if of_env.render_fps:
    return of_env.render_fps
  spec = gymnasium.registry.get(env.env)
  if spec is None or spec.entry_point is None:
    return _FRAMES_PER_SECOND
  try:
    env_class: Any = registration.load_env_creator(str(spec.entry_point))
    return float(env_class.metadata["render_fps"])
  except Exception:  # The environment's packages are missing or broken.
    return _FRAMES_PER_SECOND


def _write_gif(
  file: str | IO[bytes],
  frames: Iterator[np.ndarray],
  rate: float,
  max_side: int | None = None,
) -> tuple[int, int]:
  """Writes a .gif; returns the height and the width of its frames.

  Frames with a side above `max_side` are made smaller, and their colours are
  chosen faster.
  """
  from PIL import Image  # Only .gif files need Pillow.

  def image(frame: np.ndarray) -> Image.Image:
    made = Image.fromarray(frame)
    if max_side is None:
      return made
    made.thumbnail((max_side, max_side))
    # Pillow's default choice of 256 colours takes up to 0.4 s for a frame.
    return made.quantize(method=Image.Quantize.FASTOCTREE)

  images = map(image, frames)
  first = next(images)
  first.save(
    file,
    format="GIF",
    save_all=True,
    append_images=images,
    duration=round(1000 / rate),
    loop=0,
  )
  return first.height, first.width


def _write_mp4(path: str, frames: Iterator[np.ndarray], rate: float) -> None:
  first = next(frames)
  height, width, _ = first.shape
  command = [_ffmpeg(), "-y", "-loglevel", "error"]
  command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
  command += ["-r", str(rate), "-i", "-"]
  # Players expect even sizes, and colours at half the resolution.
  command += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]
  command += [path]
  with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
    assert process.stdin is not None
    for frame in itertools.chain([first], frames):
      process.stdin.write(np.ascontiguousarray(frame).data)
  if process.returncode:
    raise OSError(f"ffmpeg ended with {process.returncode}")


def _ffmpeg() -> str:
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
