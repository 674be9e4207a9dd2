"""Evaluation of whole episodes, during a run and after it."""

import dataclasses
import functools
import json
import pathlib
import signal
import sys
import threading

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments import a2c
from seedx import envs, metrics, types
from seedx.acting import evaluator
from seedx.agents import vtrace
from seedx.app import evaluate, policies, videos
from seedx.app.runs import evaluations, statistics
from seedx.envs import envpool_adapter
from seedx.pipelines import sync
from seedx.runtime import seeding
from tests import fakes, programs, running

own_signals = programs.own_signals
compiled_once = programs.compiled_once

CARTPOLE = envs.Config("CartPole-v1")


@functools.cache
def remembering_agent():
  """Returns an agent that acts by the sum of its observations and actions."""
  agent = fakes.counting_agent()

  def step(acting, rng_key, inputs, core_state):
    seen = inputs._replace(
      timestep=inputs.timestep._replace(
        observation=inputs.timestep.observation
        + 0.3 * inputs.action_tm1[:, None].astype(jnp.float32)
      )
    )
    output, core_state = agent.step(acting, rng_key, seen, core_state)
    return types.AgentOutput(output.action, ()), core_state

  def drawn(acting, rng_key, inputs, core_state):
    output, core_state = step(acting, rng_key, inputs, core_state)
    action = jax.random.randint(rng_key, output.action.shape, 0, 2)
    return output._replace(action=action), core_state

  return dataclasses.replace(agent, step=drawn, greedy=step)


def by_hand(acting, seed, episodes):
  """Computes the returns of `remembering_agent`'s episodes in NumPy."""
  environment = envpool_adapter.EnvPoolEnvironment(CARTPOLE, 1, seed=seed)
  environment.reset()
  returns, total, core_state, action = [], 0.0, None, None
  while len(returns) < episodes:
    rows = environment.recv()
    timestep = rows.timestep
    if timestep.step_type[0] == 0:
      total, core_state, action = 0.0, np.float32(0), 0
    else:
      total += float(timestep.reward[0])
    if timestep.step_type[0] == 2:
      returns.append(total)
    seen = timestep.observation[0] + np.float32(0.3 * action)
    core_state = core_state + seen.sum(dtype=np.float32) + np.float32(acting)
    action = int(np.round(core_state)) % 2
    environment.send(rows.index, np.array([action], np.int32))
  environment.close()
  return returns


def player(agent=None, **fields):
  config = evaluator.Config(**{"env": CARTPOLE, "num_episodes": 7, **fields})
  return evaluator.Evaluator(agent or remembering_agent(), config)


def test_every_environment_plays_its_share_of_whole_episodes():
  played = player(num_envs=3).play(np.float32(0.2), seed=11)
  shares = [by_hand(0.2, 11 + k, 3 if k == 0 else 2) for k in range(3)]
  expected = [total for share in shares for total in share]
  assert sorted(played.returns.tolist()) == sorted(expected)
  assert played.cut == 0 and played.returns.dtype == np.float64


def test_there_are_no_more_environments_than_episodes(monkeypatch):
  made = spy_on_make(monkeypatch)
  played = player(num_envs=16, num_episodes=2).play(np.float32(0.2), seed=5)
  assert made == [(5, 2)]
  assert len(played.returns) == 2


def spy_on_make(monkeypatch):
  made, make = [], envs.make

  def spy(env, num_envs, *, seed=0, **rest):
    made.append((seed, num_envs))
    return make(env, num_envs, seed=seed, **rest)

  monkeypatch.setattr(envs, "make", spy)
  return made


def test_entries_of_info_are_those_of_the_whole_episodes():
  env = dataclasses.replace(CARTPOLE, log_info=("elapsed_step",))
  limit = int(np.median([by_hand(0.2, 20 + k, 1)[0] for k in range(6)]))
  cutting = player(env=env, num_envs=6, num_episodes=6, max_episode_steps=limit)
  played = cutting.play(np.float32(0.2), seed=20)
  assert 0 < played.cut < 6
  steps = played.info[:, 0]
  # An episode of CartPole has as many steps as its return; a cut one has none.
  whole = ~np.isnan(steps)
  assert np.count_nonzero(whole) == 6 - played.cut
  np.testing.assert_array_equal(steps[whole], played.returns[whole])
  means = statistics.info_means(env.log_info, played.info)
  assert means == {"info_elapsed_step": pytest.approx(np.nanmean(steps))}
  assert statistics.info_in_words(means).startswith(", elapsed_step ")
  none = statistics.info_means(("a",), np.full((2, 1), np.nan))
  assert none == {"info_a": None}
  assert statistics.info_in_words(none) == ", a -"


class StopAfter:
  """A stop event that is set after a number of steps."""

  def __init__(self, steps):
    self.steps = steps

  def is_set(self):
    self.steps -= 1
    return self.steps < 0


def test_a_stop_ends_an_evaluation_early():
  playing = player(num_envs=2, num_episodes=1000)
  played = playing.play(np.float32(0.2), seed=0, stop=StopAfter(60))
  assert 2 <= len(played.returns) < 20
  stop = threading.Event()
  stop.set()
  assert playing.play(np.float32(0.2), seed=0, stop=stop).returns.shape == (0,)


# Rows with their own parameters


ACTING = np.array([0.2, 0.7, 1.3], np.float32)


def of_rows(played, num_envs=3):
  """Groups returns by environment, in the order of the episodes."""
  return [played.returns[played.row == k].tolist() for k in range(num_envs)]


def test_a_row_keeps_its_parameters_after_a_cut_episode():
  originals = [by_hand(acting, 11 + k, 2) for k, acting in enumerate(ACTING)]
  replacements = [by_hand(acting, 14 + k, 1) for k, acting in enumerate(ACTING)]
  limit = int(np.median([first for first, _ in originals]))
  cut = [first > limit for first, _ in originals]
  assert 0 < sum(cut) < 3
  expected = [
    [min(total, limit) for total in (both[:1] + new if is_cut else both)]
    for both, new, is_cut in zip(originals, replacements, cut, strict=True)
  ]
  options = {"num_envs": 3, "num_episodes": 6, "max_episode_steps": limit}
  played = player(**options, per_row=True).play(ACTING, seed=11)
  assert of_rows(played) == expected


class Scripted:
  """Environments whose episodes have given lengths, whatever the actions."""

  spec = types.EnvironmentSpec(
    observation=dm_env.specs.Array((1,), np.float32),
    action=dm_env.specs.DiscreteArray(2, np.int32),
  )

  def __init__(self, *lengths):
    self.lengths = [list(left) for left in lengths]
    self.num_envs = len(lengths)
    self.time = np.full(len(lengths), -1)

  def reset(self):
    pass

  def recv(self):
    self.time += 1
    lengths = np.array([left[0] for left in self.lengths])
    ended = self.time == lengths
    step_type = np.where(self.time == 0, 0, np.where(ended, 2, 1))
    rows = types.Rows(
      np.arange(self.num_envs, dtype=np.int32),
      dm_env.TimeStep(
        step_type.astype(np.uint8),
        (self.time > 0).astype(np.float32),
        np.ones(self.num_envs, np.float32),
        np.zeros((self.num_envs, 1), np.float32),
      ),
      np.where(ended, lengths, np.nan).astype(np.float32),
    )
    for k in np.flatnonzero(ended):
      self.lengths[k].pop(0)
      self.time[k] = -1
    return rows

  def send(self, index, action):
    pass

  def close(self):
    pass


def test_new_environments_play_the_episodes_missing_after_a_cut(monkeypatch):
  """The rest of the cut episode ends meanwhile, but does not count."""
  made = iter([Scripted([6, 9, 9], [3, 3, 9]), Scripted([2])])

  def make(env, num_envs, *, seed):
    scripted = next(made)
    assert num_envs == scripted.num_envs
    return scripted

  monkeypatch.setattr(envs, "make", make)
  cutting = player(num_envs=2, num_episodes=4, max_episode_steps=4)
  played = cutting.play(np.float32(0), seed=0)
  assert played.returns.tolist() == [3, 4, 3, 2]
  assert played.row.tolist() == [1, 0, 1, 0]
  assert played.cut == 1 and next(made, None) is None


def test_actions_are_greedy_or_sampled():
  agent = remembering_agent()
  greedy = player(agent, num_envs=1, num_episodes=3)
  drawn = player(agent, num_envs=1, num_episodes=3, greedy=False)
  expected, acting = by_hand(0.2, 8, 3), np.float32(0.2)
  assert greedy.play(acting, seed=8).returns.tolist() == expected
  played = drawn.play(acting, seed=8)
  assert played.returns.tolist() != expected
  # With one key instead of one for each step, all actions would be the same.
  assert 12 < played.returns.mean() < 60


def test_an_agent_without_a_greedy_step_must_sample_its_actions():
  with pytest.raises(types.ConfigError, match="--no-greedy"):
    player(fakes.counting_agent())
  player(fakes.counting_agent(), greedy=False)


@pytest.mark.parametrize("seed", [0, 2048, 2**30 - 1])
def test_training_does_not_use_the_seeds_of_evaluation(seed):
  half, max_envs = 2**30, 2**16
  seeds = [
    seeding.evaluation_seed(seed, number)
    for number in (0, 1, 77, 2**18, 2**30, 10**12)
  ]
  assert len(set(seeds)) == len(seeds)
  assert min(seeds) >= half and max(seeds) + max_envs <= 2 * half
  training = seeding.Seeds(seed)
  assert max(training.take(2**20) for _ in range(2**11)) + 2**20 <= half


def test_evaluations_with_different_seeds_share_no_episode():
  first, second = (
    evaluate._seed(7, evaluate.Options(seed=seed, episodes=50))
    for seed in (3, 4)
  )
  assert abs(second - first) >= 50


# Statistics


def test_a_summary_agrees_with_a_simple_computation():
  returns = np.array([100.0, 3.0, 1.0, 4.0, 2.0, 7.0, -50.0, 5.0])
  summary = statistics.summary(returns)
  assert summary["episodes"] == 8
  assert summary["mean"] == returns.sum() / 8 == 9.0
  assert summary["median"] == 3.5
  # The middle four of -50 1 2 3 4 5 7 100.
  assert summary["iqm"] == (2 + 3 + 4 + 5) / 4
  assert summary["iqm_low"] < summary["iqm"] < summary["iqm_high"]
  # The reference is a bootstrap that sorts each resample.
  rng = np.random.default_rng(7)
  draws = np.sort(rng.choice(returns, (2_000, 8)), axis=1)
  means = np.sort(draws[:, 2:6].mean(axis=1))
  assert summary["iqm_low"] == pytest.approx(means[50], abs=0.6)
  assert summary["iqm_high"] == pytest.approx(means[1_950], abs=2.0)
  assert json.loads(json.dumps(summary)) == summary
  assert "interquartile mean 3.5 (95%" in statistics.in_words(summary)


# During a run


def periodic(tmp_path, env=CARTPOLE, **fields):
  options = {"evaluate_every_steps": 100, "evaluate_episodes": 3, **fields}
  agent = running.Changed(vtrace.Config(), lambda agent: remembering_agent())
  config = sync.Config(env=env, agent=agent)
  return evaluations.of(config, evaluations.Config(**options), tmp_path)


def test_evaluations_are_due_at_regular_intervals_of_steps(
  tmp_path, monkeypatch
):
  assert periodic(tmp_path, evaluate_every_steps=0) is None
  made, at = spy_on_make(monkeypatch), []
  monkeypatch.setattr(envs, "at", lambda *x: at.append(x) or x[0])
  evaluation = periodic(tmp_path)
  assert evaluation.measure() == {} and evaluation.words == ""
  steps = []
  for env_steps in (130, 140, 199, 200, 250, 460):
    if evaluation.due(env_steps):
      evaluation.start(env_steps, np.float32(0.2))
      steps.append(env_steps)
      running.wait_until(lambda: evaluation.due(10**9))
  assert [env_steps for _, env_steps in at] == steps
  assert steps == [130, 200, 460]
  evaluation.finish(470, np.float32(0.2), stop=False)
  # A second call evaluates nothing: these steps have been evaluated.
  evaluation.finish(470, np.float32(0.2), stop=False)
  lines = programs.lines_of(tmp_path / "evaluations.jsonl")
  assert [x["env_steps"] for x in lines] == [130, 200, 460, 470]
  assert all(x["episodes"] == 3 and x["cut"] == 0 for x in lines)
  # Evaluations play different episodes, with seeds that training does not use.
  seeds = [seed + k for seed, count in made[:3] for k in range(count)]
  assert len(set(seeds)) == 9
  assert min(seeds) >= seeding.evaluation_seed(0, 0)
  assert lines[0]["mean"] != lines[1]["mean"]
  expected = [by_hand(0.2, made[0][0] + k, 1) for k in range(3)]
  assert lines[0]["mean"] == pytest.approx(np.mean(expected))
  # The next line of metrics has the last mean return.
  assert evaluation.measure() == {"evaluation_return": lines[-1]["mean"]}
  assert f"mean {lines[-1]['mean']:.1f}," in evaluation.words


def test_an_evaluation_reports_the_entries_of_info(tmp_path):
  env = dataclasses.replace(CARTPOLE, log_info=("elapsed_step",))
  evaluation = periodic(tmp_path, env)
  evaluation.finish(100, np.float32(0.2), stop=False)
  (line,) = programs.lines_of(tmp_path / "evaluations.jsonl")
  assert line["info_elapsed_step"] == line["mean"]
  mean = evaluation.measure()["evaluation_info_elapsed_step"]
  assert mean == line["mean"]
  assert f"of 3 episodes, elapsed_step {mean:.3g}" in evaluation.words


def test_only_one_evaluation_runs_at_a_time(tmp_path):
  evaluation = periodic(tmp_path, evaluate_episodes=1000)
  assert evaluation.due(0)
  evaluation.start(0, np.float32(0.2))
  assert not evaluation.due(1000)
  evaluation.finish(1000, np.float32(0.2), stop=True)
  assert not (tmp_path / "evaluations.jsonl").exists()


def test_an_evaluation_that_fails_ends_the_run(tmp_path, monkeypatch):
  evaluation = periodic(tmp_path)

  def fail(*_):
    raise FloatingPointError("no return")

  monkeypatch.setattr(evaluator.Evaluator, "play", fail)
  evaluation.start(0, np.float32(0.2))
  with pytest.raises(FloatingPointError, match="no return"):
    evaluation.finish(1000, np.float32(0.2), stop=False)
  evaluation.start(1000, np.float32(0.2))
  with pytest.raises(FloatingPointError, match="no return"):
    running.wait_until(lambda: evaluation.due(2000))


# The program


_SMALL = ["--hidden-sizes=8", "--num-envs=4", "--unroll-length=5"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
  path = tmp_path_factory.mktemp("runs") / "run"
  words = "--total-steps 2000 --evaluate-every-steps 200"
  words += " --evaluate-episodes 3 --checkpoint-every-seconds 0.02"
  words = [*_SMALL, *words.split(), "--run-dir", str(path)]
  assert programs.main(a2c, words) == 0
  return path


def test_a_run_is_evaluated_while_it_trains(run_dir):
  lines = programs.lines_of(run_dir / "evaluations.jsonl")
  steps = [line["env_steps"] for line in lines]
  assert len(steps) >= 2 and steps == sorted(set(steps))
  last = metrics.read_lines(run_dir / "metrics.jsonl")[-1]
  assert steps[-1] == last["env_steps"] == programs.steps_of(run_dir)[-1]
  assert all(line["episodes"] == 3 for line in lines)
  returns = [
    line["evaluation_return"]
    for line in metrics.read_lines(run_dir / "metrics.jsonl")
    if "evaluation_return" in line
  ]
  assert returns and set(returns) <= {line["mean"] for line in lines}


def run(run_dir, capfd, *words):
  """Evaluates a run; returns the output, the result and the result's path."""
  capfd.readouterr()
  assert evaluate.main([str(run_dir), "--episodes", "5", *words]) == 0
  out = capfd.readouterr().out
  path = pathlib.Path(out.split()[-1])
  return out, json.loads(path.read_text()), path


def test_the_program_evaluates_the_policy_of_a_run(run_dir, capfd):
  steps = programs.steps_of(run_dir)
  out, result, path = run(run_dir, capfd)
  assert path.name == f"evaluation-{steps[-1]}.json"
  assert f"CartPole-v1 after {steps[-1]:,} env steps: mean" in out
  assert result["env_steps"] == steps[-1]
  assert result["greedy"] is True and result["cut"] == 0
  assert len(result["returns"]) == result["episodes"] == 5
  assert result["mean"] == pytest.approx(np.mean(result["returns"]))
  assert f"mean {result['mean']:.1f}" in out
  again = run(run_dir, capfd)[1]
  other = run(run_dir, capfd, "--seed", "1")[1]
  words = "--no-greedy", "--log-info", "elapsed_step"
  out, drawn, _ = run(run_dir, capfd, *words)
  assert again == result
  assert drawn["greedy"] is False and drawn["returns"] != result["returns"]
  assert drawn["info_elapsed_step"] == drawn["mean"]
  assert f"of 5 episodes, elapsed_step {drawn['mean']:.3g}" in out
  assert other["seed"] == 1 and other["returns"] != result["returns"]
  first = run(run_dir, capfd, "--checkpoint", str(steps[0]))[1]
  assert first["env_steps"] == steps[0]


def test_a_policy_plays_in_other_worlds(run_dir, capfd):
  _, own, own_path = run(run_dir, capfd)
  assert own["env"] == "CartPole-v1" and own["env_options"] == {}
  out, result, path = run(
    run_dir, capfd, "--env-options", "max_episode_steps=7"
  )
  assert "CartPole-v1 with max_episode_steps=7 after" in out
  assert result["env_options"] == {"max_episode_steps": 7}
  assert result["returns"] == [min(x, 7.0) for x in own["returns"]]
  assert path.name.endswith("-CartPole-v1_with_max_episode_steps=7.json")
  assert json.loads(own_path.read_text()) == own
  out, result, _ = run(run_dir, capfd, "--env", "seedx:CartPole-v1")
  assert "seedx:CartPole-v1 after" in out
  assert result["returns"] != own["returns"]


def test_environments_are_those_of_the_checkpoint(run_dir, monkeypatch):
  monkeypatch.setattr(envs, "at", lambda env, steps: (env.env, steps))
  policy = policies.load(run_dir)
  assert policy.env == ("CartPole-v1", programs.steps_of(run_dir)[-1])


def test_other_actions_are_refused(run_dir, monkeypatch):
  policy = policies.load(run_dir)
  action = dm_env.specs.DiscreteArray(3, dtype=policy.spec.action.dtype)
  spec = dataclasses.replace(policy.spec, action=action)
  monkeypatch.setattr(envs, "spec", lambda env: spec)
  with pytest.raises(types.ConfigError, match=r"action is .* from 0 to 1, as"):
    policy.on(envs.Config("Other-v1"))


def test_options_of_a_run_stay_in_the_same_environment():
  env = envs.Config("a", {"x": 1, "y": 2}, action_mask="mask")
  for options, expected in (
    ({"env_options": {"x": 3}}, {"env_options": {"x": 3, "y": 2}}),
    ({"env": "a", "env_options": {"x": 3}}, {"env_options": {"x": 3, "y": 2}}),
    ({"env": "b"}, {"env": "b", "env_options": {}}),
  ):
    actual = evaluate._other(env, evaluate.Options(**options))
    assert actual == dataclasses.replace(env, **expected)


def test_cut_episodes_are_reported(run_dir, capfd):
  out, result, _ = run(run_dir, capfd, "--max-episode-steps", "3")
  assert result["returns"] == [3.0] * 5 and result["cut"] == 5
  assert "5 episodes were cut at --max-episode-steps" in out


@pytest.mark.slow
def test_a_run_that_still_trains_can_be_evaluated(tmp_path, capfd):
  words = ["--total-steps", "100000000", "--checkpoint-every-seconds", "0.1"]
  program = programs.start(a2c, *_SMALL, *words, "--run-dir", str(tmp_path))
  try:
    running.wait_until(lambda: (programs.steps_of(tmp_path) or [0])[-1])
    seen = []

    def play():
      for which in ("best", "latest"):
        result = run(tmp_path, capfd, "--checkpoint", which)[1]
      seen.append(result["env_steps"])
      return len(set(seen)) >= 2

    running.wait_until(play)
    assert seen == sorted(seen)
    assert program.poll() is None
    program.send_signal(signal.SIGINT)
    assert program.wait(300) == 130
  finally:
    program.kill()
    program.wait()


@pytest.mark.parametrize(
  ("words", "reason"),
  [
    ("{run} --checkpoint 1", "expected --checkpoint latest, best or one of"),
    ("{run} --checkpoint ²", "expected --checkpoint latest, best or one of"),
    ("{run} --episodes 0", "expected --episodes from 1"),
    ("{run} --log-info elapsed", "Did you mean elapsed_step"),
    ("{run} --env Acrobot-v1", "whose observation is float32 [4], as in"),
    ("{run} --env-options no=1", "unknown option 'no'"),
    ("{run} --video {tmp}/play.avi", "that ends in .gif or .mp4"),
    ("{run} --video {tmp}/nowhere/play.gif", "a directory that exists"),
  ],
)
def test_wrong_options_are_refused_in_one_line(
  words, reason, run_dir, tmp_path, capfd
):
  words = words.format(run=run_dir, tmp=tmp_path).split()
  assert reason in programs.refused(evaluate, words, capfd)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ("values", "reason"),
  [
    ({"experiment": "json:EXPERIMENT"}, "with an EXPERIMENT that can be"),
    ({"experiment": None, "agent": "mine:Agent"}, "config of this run"),
    ({}, "expected a checkpoint"),
  ],
)
def test_a_run_that_cannot_be_loaded_is_refused(
  values, reason, run_dir, tmp_path, capfd
):
  content = json.loads((run_dir / "config.json").read_text()) | values
  (tmp_path / "config.json").write_text(json.dumps(content))
  error = programs.refused(evaluate, [str(tmp_path), "--trust"], capfd)
  assert reason in error


# Videos


def first_frame(run_dir):
  """Renders the first frame of an evaluation, without a video."""
  seed = seeding.evaluation_seed(0, 2**18)
  environment = envs.make(CARTPOLE, 1, seed=seed, render=True)
  environment.reset()
  environment.recv()
  frame = environment.render()
  environment.close()
  return frame


def episode_length(result):
  return int(result["returns"][0]) + 1


def test_a_gif_shows_the_environments_own_frames(run_dir, tmp_path, capfd):
  path = tmp_path / "play.gif"
  out, result, _ = run(
    run_dir, capfd, "--video", str(path), "--num-envs", "1", "--episodes", "1"
  )
  length = episode_length(result)
  assert f"{length} frames of an episode are in {path}" in out
  frame = first_frame(run_dir)
  with Image.open(path) as image:
    assert image.size == (frame.shape[1], frame.shape[0])
    shown = np.asarray(image.convert("RGB"), np.int64)
    np.testing.assert_allclose(shown, frame, atol=12)
    image.seek(image.n_frames - 1)
    last = np.asarray(image.convert("RGB"), np.int64)
    seconds = 0.0
    # Pillow merges equal frames into one that is shown for longer.
    for place in range(image.n_frames):
      image.seek(place)
      seconds += image.info["duration"] / 1000
    assert seconds == pytest.approx(length / 50, rel=0.15)
    assert image.info["loop"] == 0
  assert np.abs(last - shown).max() > 50


@pytest.mark.slow
def test_an_mp4_has_one_frame_for_each_step(run_dir, tmp_path, capfd):
  import imageio_ffmpeg

  path = tmp_path / "play.mp4"
  out, result, _ = run(
    run_dir, capfd, "--video", str(path), "--num-envs", "1", "--episodes", "1"
  )
  length = episode_length(result)
  assert f"{length} frames of an episode" in out
  count, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
  assert count == length
  assert seconds == pytest.approx(length / 50, abs=0.05)
  frame = first_frame(run_dir)
  reader = imageio_ffmpeg.read_frames(str(path))
  width, height = next(reader)["size"]
  assert (height, width) == frame.shape[:2]
  shown = np.frombuffer(next(reader), np.uint8).reshape(height, width, 3)
  reader.close()
  assert np.abs(shown.astype(int) - frame).mean() < 5


def test_without_ffmpeg_an_mp4_is_refused_before_anything_is_played(
  run_dir, tmp_path, monkeypatch, capfd
):
  monkeypatch.setenv("PATH", "")
  monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
  path, made = tmp_path / "play.mp4", spy_on_make(monkeypatch)
  error = programs.refused(
    evaluate, [str(run_dir), "--video", str(path)], capfd
  )
  assert "expected ffmpeg" in error and ".gif needs no ffmpeg" in error
  assert not path.exists() and made == []


def test_an_environment_without_frames_is_refused(tmp_path):
  with pytest.raises(types.ConfigError, match="Catch-v0 cannot be rendered"):
    videos.check(str(tmp_path / "play.GIF"), envs.Config("Catch-v0"))


def test_a_video_is_as_fast_as_its_environment():
  for env, expected in (
    ("CartPole-v1", 50),
    ("Pong-v5", 15),
    ("tests.own_envs:Drawn", 12),
    ("tests.own_envs:counting_dm", 30),
    # Gymnasium has this environment, but Box2D is not installed.
    ("LunarLander-v3", 30),
  ):
    assert videos.frames_per_second(envs.Config(env)) == expected
