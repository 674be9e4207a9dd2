"""Videos that evaluations record during training."""

import dataclasses
import io
import threading
import types as types_lib

import numpy as np
import pytest
from PIL import Image

from experiments import a2c
from seedx import envs, types
from seedx.acting import evaluator
from seedx.agents import vtrace
from seedx.app import directory, videos
from seedx.app.runs import evaluations
from seedx.envs import rendering
from seedx.pipelines import sync
from tests import fakes, programs
from tests.envs import worker_processes

compiled_once = programs.compiled_once
fork_server, workers = worker_processes.fork_server, worker_processes.workers
CARTPOLE = envs.Config("CartPole-v1")
AGENT = vtrace.Config(hidden_sizes=(8,))
OWN = worker_processes.config_of("Informing", {"infos": [{}]})


def record(env, stop=None):
  player = evaluator.Evaluator(
    fakes.counting_agent(), evaluator.Config(env, 1, greedy=False)
  )
  stop = stop or threading.Event()
  return videos.record_small(env, np.float32(0), player, 3, 70, stop)


def shown(video):
  """Returns the frames of a video, and its duration in seconds."""
  frames, seconds = [], 0.0
  with Image.open(io.BytesIO(video.gif)) as image:
    assert image.format == "GIF" and image.size == video.size[::-1]
    for place in range(image.n_frames):
      image.seek(place)
      frames.append(np.asarray(image.convert("RGB"), np.int64))
      seconds += image.info["duration"] / 1000
  return frames, seconds


def frames_of(env, seed, count):
  """Renders the first `count` frames of an episode of action 0."""
  environment = envs.make(env, 1, seed=seed, render=True)
  environment.reset()
  frames = []
  for _ in range(count):
    rows = environment.recv()
    frames.append(environment.render())
    environment.send(rows.index, np.zeros(1, int))
  environment.close()
  return frames


def test_a_video_has_at_most_15_small_frames_a_second():
  video = record(CARTPOLE)
  assert video.env_steps == 70
  height, width = frames_of(CARTPOLE, 3, 1)[0].shape[:2]
  assert max(height, width) > 320 == max(video.size)
  assert video.size[0] / video.size[1] == pytest.approx(
    height / width, rel=0.02
  )
  frames, seconds = shown(video)
  # CartPole has 50 steps per second, of which every fourth one is shown.
  assert len(frames) >= 3
  assert seconds == pytest.approx(4 / 50 * len(frames), abs=0.011 * len(frames))


def test_a_small_picture_of_the_users_environment_keeps_its_size():
  video = record(OWN)
  assert video.size == (4, 6)
  frames, _ = shown(video)
  assert (frames[0] == 200).all()


def test_a_video_is_cut(monkeypatch):
  # One step per second of 15, so that the fifth step is the last one.
  monkeypatch.setattr(videos, "_SMALL_SECONDS", 5 / 50)
  frames, _ = shown(record(CARTPOLE))
  assert len(frames) == 2  # Steps 0 and 4.
  stopped = threading.Event()
  stopped.set()
  frames, _ = shown(record(CARTPOLE, stopped))
  assert len(frames) == 1


def test_atari_shows_the_emulators_picture(monkeypatch):
  monkeypatch.setattr(videos, "_SMALL_SECONDS", 0.2)
  env = envs.Config("Pong-v5")
  seen = []

  class Player:
    def steps(self, acting, seed, environment):
      environment.reset()
      while True:
        rows = environment.recv()
        seen.append(rows)
        yield rows
        environment.send(rows.index, np.zeros(1, int))

  video = videos.record_small(env, (), Player(), 3, 0, threading.Event())
  assert video.size == (210, 160) and len(seen) == 3


def of(env, tmp_path, **fields):
  options = evaluations.Config(evaluate_every_steps=100, **fields)
  return evaluations.of(sync.Config(env=env, agent=AGENT), options, tmp_path)


def test_without_evaluations_the_option_is_refused():
  with pytest.raises(types.ConfigError, match=r"with --evaluate-every-steps"):
    directory.Config(record_video=True)


def test_an_environment_without_frames_is_refused_before_training(tmp_path):
  env = envs.Config("seedx:CartPole-v1")
  with pytest.raises(types.ConfigError, match="leave out --record-video"):
    of(env, tmp_path, record_video=True)
  assert of(env, tmp_path) is not None


def test_a_video_shows_the_environment_of_the_env_steps(tmp_path, monkeypatch):
  monkeypatch.setattr(rendering, "check_render", lambda env: None)
  env = worker_processes.config_of("Ageing", {"env_steps": 0})
  agent = fakes.counting_agent()
  agent = dataclasses.replace(agent, greedy=agent.step)
  make = types_lib.SimpleNamespace(make=lambda spec: agent)
  run = types_lib.SimpleNamespace(env=env, agent=make, seed=0)
  options = evaluations.Config(evaluate_every_steps=100, record_video=True)
  evaluation = evaluations.Periodic(run, options, tmp_path)
  evaluation.finish(200, np.float32(0), stop=False)
  frames, _ = shown(evaluation.videos.pop())
  assert (frames[0] == 200).all()


@pytest.mark.slow
def test_each_evaluation_of_a_run_has_a_video(tmp_path):
  words = "--hidden-sizes 8 --num-envs 4 --log-seconds 0 --total-steps 1200"
  words += " --evaluate-every-steps 600 --evaluate-episodes 2 --record-video"
  run_dir = tmp_path / "run"
  assert programs.main(a2c, [*words.split(), "--run-dir", str(run_dir)]) == 0
  steps = sorted(int(x.stem) for x in (run_dir / "videos").iterdir())
  assert len(steps) >= 2 and steps[0] == 0 and steps[-1] >= 1200
  events = programs.read_events(run_dir)
  images = {step: x.image for step, x in events if x.tag.endswith("_video")}
  assert sorted(images) == steps
  for step, image in images.items():
    content = (run_dir / "videos" / f"{step}.gif").read_bytes()
    assert image.encoded_image_string == content
    assert image.width == 320
  tags = [x.tag for _, x in events]
  assert tags.count("_hparams_/session_start_info") == 1
  assert "run/video_seconds" in tags
