"""The console output of a run: its first lines, its progress and its result."""

import dataclasses
import json
import math
import re
import sys
import threading
import types as python_types

import jax
import numpy as np
import pytest
from dm_env import specs
from flax import linen as nn

from experiments import a2c as a2c_experiment
from seedx import app, envs, metrics, types, wire
from seedx.acting import evaluator
from seedx.agents import a2c, alphazero, ddpg, dqn, ppo, rainbow, sac
from seedx.app import descriptions, devices, roles
from seedx.app.cli import programs as programs_of_experiments
from seedx.app.runs import records
from seedx.pipelines import sync
from tests import programs, running
from tests.app import cases
from tests.repository import documentation

own_signals = programs.own_signals
compiled_once = programs.compiled_once


def test_a_run_prints_its_setup_its_progress_and_its_result(
  tmp_path, capfd, monkeypatch
):
  monkeypatch.setattr(descriptions, "doubts", lambda agent, env: [env.env])
  assert cases.train("--log-every 0 --log-seconds 0", tmp_path / "run") == 0
  captured = capfd.readouterr()
  first, *rows = captured.err.splitlines()
  assert first == f"a2c on CartPole-v1 | 8 x CPU | {tmp_path}/run"
  preset, doubt, network, *rows = rows
  assert preset == "presets for small tasks: reward_scale 0.1"
  assert doubt == "CartPole-v1"
  assert network == "network: MLP 8 tanh, policy 2 + value 1: 67 parameters"
  assert sum("/400" in row for row in rows) > 3
  ended = metrics.read_lines(tmp_path / "run" / "metrics.jsonl")[-1]["episodes"]
  assert 1 < ended < 100
  assert f"mean return of the last {ended} episodes" in captured.out


def test_quiet_prints_only_the_result(tmp_path, capfd):
  assert cases.train("--quiet", tmp_path / "run") == 0
  captured = capfd.readouterr()
  assert captured.err == ""
  assert re.search(
    r"after 4\d\d env steps \([\d,]+ a second\) in \d+ s, of which JAX compiled"
    r" for \d+ s",
    captured.out,
  )


@pytest.mark.slow
def test_a_run_ends_early_at_stop_at(tmp_path, capfd):
  """Settings of one start, such as `stop_at`, are not saved."""
  folder, total = tmp_path / "run", 10_000_000
  assert cases.train(f"--stop-at 5 --total-steps {total} --quiet", folder) == 0
  *_, last = metrics.read_lines(folder / "metrics.jsonl")
  assert last["episode_return"] >= 5
  assert last["episodes"] >= 100 and last["env_steps"] < total / 10
  assert "ended early: --stop-at 5 is reached" in capfd.readouterr().out
  saved = json.loads((folder / "config.json").read_text())
  of_this_start = {"quiet", "log_every", "sink", "stop_at"}
  assert not of_this_start & set(saved["options"])
  asked, _ = programs_of_experiments.read(
    a2c_experiment.EXPERIMENT,
    ["--resume", str(folder)],
    a2c_experiment.__name__,
  )
  assert (asked.files.quiet, asked.files.stop_at) == (False, math.inf)
  assert asked.run.total_steps == total


@pytest.mark.slow
@pytest.mark.parametrize("reached", [4.0, 9.0])
def test_stop_at_is_compared_with_evaluations_if_there_are_any(
  reached, tmp_path, monkeypatch
):
  """The returns in training exceed 5, the value of `--stop-at`."""
  played = evaluator.Results(
    np.array([reached]), np.array([0]), 9, 0, np.empty((1, 0))
  )
  monkeypatch.setattr(evaluator.Evaluator, "play", lambda *_: played)
  total = 3000 if reached < 5 else 10_000_000
  words = f"--stop-at 5 --total-steps {total} --quiet --log-seconds 0"
  folder = tmp_path / "run"
  assert cases.train(f"{words} --evaluate-every-steps 100", folder) == 0
  *_, last = metrics.read_lines(folder / "metrics.jsonl")
  assert last["episode_return"] is None or last["episode_return"] > 5
  assert (last["env_steps"] >= total) == (reached < 5)


def test_a_sink_gets_all_lines_even_if_another_one_fails(tmp_path, capfd):
  sink, failing = running.Lines(), metrics.Callbacks(lambda line: 1 / 0)
  run = app.train(
    cases.small(400),
    run_dir=str(tmp_path),
    quiet=True,
    sinks=[failing, sink],
  )
  assert run.unwritten == ["the rest of Callbacks"]
  assert "cannot write Callbacks" in capfd.readouterr().err
  lines = metrics.read_lines(tmp_path / "metrics.jsonl")
  assert [x["env_steps"] for x in sink.lines] == [x["env_steps"] for x in lines]


# The sinks in docs/metrics.md, with fakes of the libraries.


@pytest.fixture
def my_sinks(tmp_path, monkeypatch):
  """Makes `my_sinks.py` of docs/metrics.md importable by name."""
  (tmp_path / "my_sinks.py").write_text(documentation.file_named("my_sinks.py"))
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, "my_sinks", raising=False)
  yield
  sys.modules.pop("my_sinks", None)


class MLflow:
  """A fake of the module `mlflow`, as far as the sink uses it.

  Attributes:
    runs: the metrics of each run by its id, as pairs of step and values.
    params: the parameters of each run by its id.
    status: the status of each run by its id.
  """

  def __init__(self):
    self.runs, self.params, self.status = {}, {}, {}
    self._active = None

  def start_run(self, run_id=None, *, run_name=None):
    if self._active is not None:
      raise RuntimeError(f"Run with UUID {self._active} is already active")
    self._active = run_id or f"{len(self.runs)} {run_name}"
    if run_id is None:
      self.runs[self._active], self.params[self._active] = [], {}
    self.status[self._active] = "RUNNING"
    info = python_types.SimpleNamespace(run_id=self._active)
    return python_types.SimpleNamespace(info=info)

  def end_run(self):
    self._active = None

  def log_params(self, params):
    assert not self.params[self._active]
    self.params[self._active] = params

  def log_metrics(self, metrics, step=None, *, run_id=None):
    assert all(isinstance(x, float | int) for x in metrics.values())
    self.runs[run_id].append((step, metrics))

  def MlflowClient(self):
    return self

  def set_terminated(self, run_id):
    self.status[run_id] = "FINISHED"


@pytest.mark.slow
def test_the_sink_for_mlflow_continues_its_run_after_a_resume(
  my_sinks, tmp_path, monkeypatch
):
  fake = MLflow()
  monkeypatch.setitem(sys.modules, "mlflow", fake)
  assert cases.train("--sink my_sinks:mlflow", tmp_path / "run") == 0
  more = "--sink my_sinks:mlflow --resume auto --total-steps 800"
  assert cases.train(more, tmp_path / "run") == 0
  assert cases.train("--sink my_sinks:mlflow", tmp_path / "other") == 0
  assert [*fake.runs] == [f"0 {tmp_path}/run", f"1 {tmp_path}/other"]
  assert {*fake.status.values()} == {"FINISHED"}
  first, other = fake.runs
  assert fake.params[first]["total_steps"] == 400
  assert fake.params[other]["hidden_sizes"] == [8]
  for step, values in fake.runs[first]:
    assert step == values["env_steps"]
  steps, lines = zip(*fake.runs[first], strict=True)
  assert list(steps) == sorted(steps) and steps[-1] >= 800
  assert {"episode_return", "entropy", "learner_steps"} <= lines[-1].keys()


class WandB:
  """A fake of the module `wandb`, as far as the sink uses it.

  Attributes:
    runs: the lines of each run by its id.
  """

  def __init__(self):
    self.runs = {}

  def init(self, project=None, *, dir=None, config=None, id=None, resume=None):
    assert project == "seedx" and dir.is_dir() and config["hidden_sizes"] == [8]
    id = id or f"id{len(self.runs)}"
    assert id not in self.runs or resume in ("allow", "must")
    lines, defined = self.runs.setdefault(id, []), []

    def log(data, step=None):
      assert defined == [("*", "env_steps")] and step is None
      lines.append(data)

    return python_types.SimpleNamespace(
      id=id,
      define_metric=lambda name, step_metric: defined.append(
        (name, step_metric)
      ),
      log=log,
      finish=lambda: lines.append("finished"),
    )


def test_the_sink_for_wandb_continues_its_run_after_a_resume(
  my_sinks, tmp_path, monkeypatch
):
  fake = WandB()
  monkeypatch.setitem(sys.modules, "wandb", fake)
  assert cases.train("--sink my_sinks:wandb", tmp_path / "run") == 0
  more = "--sink my_sinks:wandb --resume auto --total-steps 800"
  assert cases.train(more, tmp_path / "run") == 0
  assert cases.train("--sink my_sinks:wandb", tmp_path / "other") == 0
  assert [*fake.runs] == ["id0", "id1"]
  lines = fake.runs["id0"]
  assert lines.count("finished") == 2 and lines[-1] == "finished"
  assert lines[-2]["env_steps"] >= 800


# Devices that JAX does not find or does not use.


@pytest.mark.parametrize(
  ("kinds", "error", "message"),
  [
    # JAX has no text where a GPU is missing.
    ("cuda", AssertionError(), r"=cuda .* none .*install seedx\[cuda13\]"),
    (
      "odd",
      RuntimeError("'odd' is not known (set JAX_PLATFORMS='' to choose)"),
      r"=odd .*'odd' is not known\); unset it .*=cpu to use the CPU; see",
    ),
    ("", RuntimeError("it is too old"), r"cannot start .*\(it is too old\)"),
  ],
)
def test_devices_that_jax_does_not_find_are_one_line(
  kinds, error, message, monkeypatch
):
  def missing():
    raise error

  config = python_types.SimpleNamespace(jax_platforms=kinds)
  fake = python_types.SimpleNamespace(devices=missing, config=config)
  monkeypatch.setattr(devices, "jax", fake)
  with pytest.raises(types.ConfigError, match=message):
    devices.check()


def test_devices_are_checked_before_anything_is_made(tmp_path, monkeypatch):
  config = cases.small()
  (tmp_path / "a").mkdir()
  records.write(tmp_path / "a", records.of(config, config, None))

  def missing():
    raise types.ConfigError("expected devices")

  settings = []
  monkeypatch.setattr(devices, "check", missing)
  monkeypatch.setattr(
    devices, "compute_on_own_threads", lambda: settings.append(True)
  )
  for use in (
    lambda: app.train(config, run_dir=str(tmp_path / "b")),
    lambda: app.load(tmp_path / "a"),
    lambda: roles.play(None, None, "", "", threading.Event(), wire.LOCAL),
  ):
    with pytest.raises(types.ConfigError, match="expected devices"):
      use()
  assert [x.name for x in tmp_path.iterdir()] == ["a"]
  assert settings == [True]  # Devices read it when they start, so it is first.


def test_an_accelerator_that_jax_cannot_use_is_reported(tmp_path, monkeypatch):
  monkeypatch.delenv("JAX_PLATFORMS", raising=False)
  assert devices.unused(tmp_path) == ""
  version = tmp_path / "proc" / "driver" / "nvidia" / "version"
  version.parent.mkdir(parents=True)
  version.touch()
  message = devices.unused(tmp_path)
  assert "has an NVIDIA GPU" in message and "seedx[cuda13]" in message
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  assert devices.unused(tmp_path) == ""


@pytest.mark.parametrize(
  ("message", "notes"),
  [
    ("RESOURCE_EXHAUSTED: Out", "XLA_PYTHON_CLIENT_PREALLOCATE=false"),
    ("INTERNAL: a bug", ""),
  ],
)
def test_only_the_error_of_a_full_device_memory_has_remedies(
  message, notes, tmp_path, monkeypatch
):
  def learn(self, context):
    raise jax.errors.JaxRuntimeError(message)

  monkeypatch.setattr(sync.Config, "learn", learn)
  with pytest.raises(jax.errors.JaxRuntimeError, match=message) as raised:
    app.train(cases.small(400), run_dir=str(tmp_path / "run"))
  actual = getattr(raised.value, "__notes__", [])
  assert bool(actual) == bool(notes) and notes in "".join(actual)


def test_a_sink_that_cannot_be_made_is_an_error_in_one_line(tmp_path, capfd):
  (tmp_path / "broken_sinks.py").write_text(
    "def make(run_dir, options):\n  raise ValueError('no api key')\n"
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(tmp_path)
    with pytest.raises(SystemExit):
      cases.train("--sink broken_sinks:make", tmp_path / "run")
  assert not (tmp_path / "run" / "config.json").exists()
  (*_, last) = capfd.readouterr().err.splitlines()
  for part in ("broken_sinks:make", "no api key", "broken_sinks.py, line 2"):
    assert part in last


@pytest.mark.slow
def test_a_resumed_run_keeps_its_presets(tmp_path, capfd):
  run = tmp_path / "run"
  words = "--presets continuous --normalize-observations"
  assert cases.train(words, run) == 0
  began = json.loads((run / "config.json").read_text())
  assert (began["options"]["presets"], began["options"]["discount"]) == (
    "continuous",
    0.9,
  )
  capfd.readouterr()
  resume = ["--resume", str(run)]

  def resumed(*words):
    module = a2c_experiment
    return app.main(module.EXPERIMENT, [*resume, *words], module.__name__)

  assert resumed("--total-steps", "800") == 0
  assert "presets for" not in capfd.readouterr().err
  now = json.loads((run / "config.json").read_text())
  assert now["options"] == {**began["options"], "total_steps": 800}
  with pytest.raises(SystemExit):
    resumed("--presets", "none")
  assert "found another --presets" in capfd.readouterr().err


@pytest.mark.parametrize(
  ("agent", "words"),
  [
    (
      ppo.Config(recurrent=True, lstm_size=4, hidden_sizes=(8, 4)),
      "MLP 8 4 tanh, LSTM 4, policy 2 + value 1: 283 parameters",
    ),
    (
      dqn.Config(dueling=True, hidden_sizes=(8,), activation="relu"),
      "MLP 8 relu, dueling 8, Q 2: 211 parameters",
    ),
    (
      rainbow.Config(hidden_sizes=(8,), num_atoms=3),
      "MLP 8 tanh, dueling 8, Q 2 x 3 atoms: 490 parameters",
    ),
    (
      rainbow.Config(hidden_sizes=(), num_atoms=3),
      "dueling, Q 2 x 3 atoms: 90 parameters",
    ),
    (
      sac.Config(hidden_sizes=(8, 4)),
      "MLP 8 4 relu, policy 2, 2 critics 8 4 relu: 259 parameters",
    ),
    (
      ddpg.Config(hidden_sizes=(8,), num_atoms=3),
      "MLP 8 relu, policy 1, 1 critic 8 relu x 3 atoms: 108 parameters",
    ),
    (
      a2c.Config(torso=cases.Torso()),
      "Torso, policy 2 + value 1: 67 parameters",
    ),
  ],
)
def test_a_network_is_described_by_its_layers(agent, words):
  is_continuous = isinstance(agent, ddpg.Config)
  env = envs.Config("Pendulum-v1") if is_continuous else cases.CARTPOLE
  actual = descriptions.network(agent, env)
  assert actual == f"network: {words}"


@pytest.mark.parametrize(
  ("side", "words", "warning"),
  [
    (32, "SmallCNN 16 32 128 (stride 2), policy", None),
    (
      180,
      "NatureCNN 512, policy",
      r"a dense layer has 11,\d+,\d+ parameters.*in",
    ),
  ],
)
def test_the_first_lines_name_a_large_dense_layer(
  side, words, warning, monkeypatch
):
  image = specs.BoundedArray((3, side, side), np.uint8, 0, 255)
  spec = types.EnvironmentSpec(image, specs.DiscreteArray(2))
  monkeypatch.setattr(descriptions.envs, "spec", lambda config: spec)
  line, *others = descriptions.network(ppo.Config(), envs.Config()).split("\n")
  assert words in line and len(others) == (warning is not None)
  assert not others or re.match(warning, others[0])


@pytest.mark.parametrize(
  ("leaf", "words"),
  [
    (specs.Array((3, 8, 8), np.uint8), None),
    (specs.Array((6, 8), np.float32), None),
    (types.ImageArray((3, 8, 9), np.float32, 0, 1), r"MLP.*transform flatten"),
    (specs.Array((64, 64), np.float32), r"flattened.*return bytes, uint8"),
  ],
)
def test_a_line_reports_what_unclear_images_are_taken_for(
  leaf, words, monkeypatch
):
  observation = {"a": leaf, "action_mask": specs.Array((7, 8), bool)}
  spec = types.EnvironmentSpec(
    observation, specs.DiscreteArray(8), action_mask="action_mask"
  )
  monkeypatch.setattr(descriptions.envs, "spec", lambda config: spec)
  lines = descriptions.pictures(ppo.Config(), cases.CARTPOLE)
  assert len(lines) == (words is not None)
  for line in lines:
    assert re.match(f"observation a, {leaf.dtype} .*{words}", line)
  own = dataclasses.replace(ppo.Config(), torso=nn.Dense(8))
  assert descriptions.pictures(own, cases.CARTPOLE) == []


TIC_TAC_TOE = envs.Config("seedx:TicTacToe")
PUCT = alphazero.Config(search="puct", num_simulations=8)


@pytest.mark.parametrize(
  ("agent", "env", "words"),
  [
    (PUCT, TIC_TAC_TOE, "the 9 moves .*; use --num-simulations 18 or"),
    (dataclasses.replace(PUCT, num_simulations=9), TIC_TAC_TOE, None),
    (dataclasses.replace(PUCT, search="gumbel"), TIC_TAC_TOE, None),
    (PUCT, cases.CARTPOLE, None),  # Making the agent refuses it.
    (sac.Config(target_entropy=-6), 6, "6 dimensions.*--target-entropy -1$"),
    (sac.Config(target_entropy=-3), 6, None),
    (sac.Config(target_entropy=-3), 1, None),
    (a2c.Config(), "Observation", "^NormalizeOb.*--normalize-observations i"),
    (a2c.Config(), "Reward", "^NormalizeReward .*--normalize-rewards instead"),
    (dqn.Config(), "Reward", "^NormalizeReward .*--reward-scale instead"),
  ],
)
def test_a_line_reports_a_setting_that_hardly_fits_the_environment(
  agent, env, words, monkeypatch
):
  if not isinstance(env, envs.Config):
    shape = (env,) if isinstance(env, int) else ()
    spec = types.EnvironmentSpec(
      specs.Array((3,), np.float32),
      specs.BoundedArray(shape, np.float32, -1, 1),
      normalizers=() if shape else (f"Normalize{env}",),
    )
    monkeypatch.setattr(descriptions.envs, "spec", lambda config: spec)
  lines = descriptions.doubts(agent, env)
  assert len(lines) == (words is not None)
  assert all(re.search(words, line) for line in lines)


def test_the_result_reports_what_the_run_lacks(tmp_path):
  run = app.train(cases.small(), run_dir=str(tmp_path), quiet=True)
  asked = python_types.SimpleNamespace(run=cases.small())
  usual = programs_of_experiments._result(asked, run)
  for name, value, words in (
    ("learner_steps", 0, "nothing was learned: the run ended before the first"),
    ("updates_skipped", 1200, "1,200 updates were skipped"),
    ("faulty_steps", 3, "3 env steps were faulty"),
  ):
    metrics = {**run.metrics, name: value}
    lines = programs_of_experiments._result(
      asked, dataclasses.replace(run, metrics=metrics)
    )
    (added,) = (line for line in lines if line not in usual)
    assert added.startswith(words)
