"""The experiments that come with seedx: their settings, and their presets."""

import dataclasses
import functools
import re

import pytest

from seedx import app, envs, types
from seedx.agents import (
  a2c,
  alphazero,
  critics,
  ddpg,
  dqn,
  evolution,
  iql,
  pqn,
  qt_opt,
  r2d2,
  rainbow,
  sac,
  vtrace,
)
from seedx.app import requests
from seedx.app.cli import programs
from seedx.app.settings import configs, experiments
from seedx.pipelines import sync
from tests import programs as programs_of_tests

# The fixture also shares specs of environments; games' specs come from files.
compiled_once = programs_of_tests.compiled_once

ENVS = ("CartPole-v1", "Pendulum-v1", "Pong-v5")
GAMES = ("seedx:TicTacToe", "seedx:ConnectFour")
CONTINUOUS = ("Pendulum-v1", "HalfCheetah-v4")
# TD3 is DDPG with these settings.
OF_TD3 = {
  "critic_learning_rate",
  "num_critics",
  "actor_period",
  "target_period",
  "target_noise",
}
# Fields in which an experiment's agent differs from the defaults of its class,
# and why.
OF_EXPERIMENTS = {
  # A3C's optimizer: all workers share its mean squares.
  **{("a3c", agent): {"optimizer"} for agent in ("a2c", "ppo")},
  ("a3c", "vtrace"): {"optimizer", "td_lambda"},
  # Rewards are small and rare, and most episodes show nothing new.
  ("r2d3", ""): {"rescale", "burn_in", "sequence_length", "epsilon_steps"},
  # Asynchronous n-step Q-learning, with the network of A3C's other agents.
  ("a3c", "dqn"): {
    "optimizer",
    "replayed",
    "n_step",
    "hidden_sizes",
    "max_gradient_norm",
    "target_period",
  },
  # The learner has to keep up with many environments.
  **{
    pair: {"epochs", "minibatches"}
    for pair in (("anakin_ppo", "ppo"), ("seed_ppo", ""), ("pool_ppo", ""))
  },
  # These values are older than the defaults of the class, and not measured.
  ("impala", "ppo"): {"epochs", "minibatches", "entropy_cost"},
  # Horgan et al. 2018 use dueling networks and a ladder of epsilons. The
  # target periods are those of the measurements in docs/results.md.
  ("apex_dqn", ""): {"dueling", "epsilon_ladder", "target_period"},
  ("gorila_dqn", ""): {"target_period"},
  ("qt_opt", ""): {"value_min", "value_max"},  # Pendulum's.
  **{pair: OF_TD3 for pair in (("td3", ""), ("offline", "td3"))},
  ("anakin_sac", "td3"): OF_TD3,
  # The settings of Ape-X DPG in Horgan et al. 2018, appendix D.
  ("apex_dpg", ""): {
    "n_step",
    "target_period",
    "target_rate",
    "noise_scale",
    "noise_ladder",
    "action_gradient_clip",
  },
}
# Fields in which an experiment's presets for images differ from the agent's
# `for_images`: the target period of Horgan et al. 2018, appendix C, and their
# epsilons, which do not decay (section 4.1).
OF_IMAGES = {
  ("apex_dqn", ""): {"target_period", "epsilon_steps"},
  ("r2d3", ""): {"rescale"},
}
# Fields in which an experiment's presets for continuous actions differ from
# `for_continuous`: epochs and minibatches as above, and the default learning
# rate.
OF_CONTINUOUS = {
  ("anakin_ppo", "ppo"): {"learning_rate", "epochs", "minibatches"},
  ("anakin_ppo", "a2c"): {"learning_rate"},
  ("anakin_ppo", "vtrace"): {"learning_rate"},
}
PAIRS = [
  (name, agent)
  for name in experiments.shipped()
  for agent in experiments.load(name).agents or [""]
]


def envs_of(name, agent=""):
  """Returns environments of all kinds that an experiment can train in."""
  agent = experiments.load(name).with_agent(agent).agent
  kinds = critics.Config | iql.Config | qt_opt.Config | evolution.Config
  if isinstance(agent, kinds):
    return CONTINUOUS
  return GAMES if isinstance(agent, alphazero.Config) else ENVS


@functools.cache
def preset(name, agent, **fields):
  """Returns an experiment's config with these settings, and their presets."""
  experiment = experiments.load(name)
  config = configs.replaced(experiment.with_agent(agent), fields)
  return experiment.with_presets(config, agent)[0]


def values(*arguments, **fields):
  return configs.values(preset(*arguments, **fields))


def check_agent(name, agent, **fields):
  """Checks that presets make an agent, or are refused for a known reason."""
  config, reason = preset(name, agent, **fields), ""
  discrete = dqn.Config | pqn.Config
  if isinstance(config.agent, discrete) and fields["env"] == "Pendulum-v1":
    reason = "discrete actions"
  elif (name, agent) == ("impala", "dqn"):
    reason = "expected a replay"
  try:
    spec = envs.spec(config.env)
    if isinstance(config.agent, evolution.Config):
      config.agent.make(spec)
    else:
      config.plan.agent(config.agent, spec)
  except types.ConfigError as error:
    assert reason and reason in str(error)
  else:
    assert not reason


def different(config, default):
  """Returns the names of fields in which two configs of agents differ."""
  assert type(config) is type(default)
  names = [field.name for field in dataclasses.fields(config)]
  return {x for x in names if getattr(config, x) != getattr(default, x)}


@pytest.mark.parametrize(("name", "agent"), PAIRS)
def test_an_experiments_agent_has_the_defaults_of_its_class(name, agent):
  experiment = experiments.load(name)
  agent_config = experiment.with_agent(agent).agent
  expected = OF_EXPERIMENTS.get((name, agent), set())
  assert different(agent_config, type(agent_config)()) == expected
  config = experiment.with_agent(agent)
  atari = experiment.images and experiment.images.purpose("images") == "Atari"
  if atari:
    images = experiment.with_presets(config, agent, "images")[0].agent
    expected = OF_IMAGES.get((name, agent), set())
    assert different(images, agent_config.for_images()) == expected
  if experiment.continuous is not None and hasattr(
    agent_config, "for_continuous"
  ):
    continuous = experiment.with_presets(config, agent, "continuous")[0].agent
    expected = OF_CONTINUOUS.get((name, agent), set())
    assert different(continuous, agent_config.for_continuous()) == expected


@pytest.mark.parametrize(
  ("name", "module"),
  [
    ("dqn", dqn),
    ("rainbow", rainbow),
    *((name, r2d2) for name in ("r2d2", "seed_r2d2")),
    *((f"{x}alphazero", alphazero) for x in ("", "seed_", "apex_")),
    *((name, ddpg) for name in ("ddpg", "td3")),
    *((f"{x}sac", sac) for x in ("", "seed_", "anakin_")),
  ],
)
def test_an_experiment_has_the_replay_of_its_agents_module(name, module):
  assert experiments.load(name).config.replay == module.REPLAY


@pytest.mark.parametrize(("name", "agent"), PAIRS)
def test_every_preset_applies_and_makes_an_agent(name, agent):
  for env in envs_of(name, agent):
    # A resume applies no presets, so presets must not add or remove settings.
    settings = configs.settings(experiments.load(name).with_agent(agent))
    assert settings.keys() == values(name, agent, env=env).keys()
    check_agent(name, agent, env=env)
    if "recurrent" in values(name, agent, env=env):
      check_agent(name, agent, env=env, recurrent=True)


@pytest.mark.parametrize(
  ("name", "agent"),
  [x for x in PAIRS if "anakin" not in x[0] and envs_of(*x) == ENVS],
)
def test_presets_fit_the_kind_of_environment(name, agent):
  vectors, continuous, images = (values(name, agent, env=x) for x in ENVS)
  assert images["total_steps"] > vectors["total_steps"]
  # Games have rewards of many sizes, and a single image shows no movement.
  assert images["stack_frames"] > 1 == vectors["stack_frames"]
  assert images["reward_scale"] == 1.0
  if images.get("rescale"):
    assert images["lstm_size"] > vectors["lstm_size"]
  else:
    assert images["reward_clip"] == 1.0
    assert vectors["reward_scale"] < 1.0 and not vectors["reward_clip"]
  if "entropy_cost" in vectors:
    # The entropy of a continuous density has no bound.
    assert continuous["entropy_cost"] == 0.0 < vectors["entropy_cost"]


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac", "seed_sac", "apex_dpg"])
def test_presets_for_mujoco_fit_longer_runs(name):
  small, mujoco = (values(name, "", env=env) for env in CONTINUOUS)
  changed = {key for key in mujoco if mujoco[key] != small[key]} - {"env"}
  assert changed == {"total_steps", "replay_min_steps", "replay_capacity"}
  assert mujoco["replay_capacity"] == mujoco["total_steps"] == 10**6
  assert small["total_steps"] == 20_000


def test_another_environment_does_not_get_the_options_of_the_default_one():
  env = envs.Config("seedx:DeepSea", {"size": 5})
  experiment = app.Experiment(sync.Config(env=env, agent=a2c.Config()))
  for words, options in (
    ("", {"size": 5}),
    ("--env seedx:Catch", {}),
    ("--env seedx:DeepSea --env-options size=4", {"size": 4}),
  ):
    asked, _ = programs.read(experiment, words.split(), __name__)
    assert asked.run.env.env_options == options


def read(name, words):
  """Returns the settings and preset lines of an experiment's command line."""
  module = experiments.load_module(name)
  return programs.read(module.EXPERIMENT, words.split(), module.__name__)


def test_the_command_line_overrides_presets():
  words = "--env Pendulum-v1 --recurrent --minibatches 2 --num-envs 16"
  asked, (small, continuous) = read("ppo", words)
  assert small == "presets for small tasks: reward_scale 0.1"
  # The preset for a memory has no line, since its minibatches are overridden.
  assert continuous == (
    "presets for continuous actions: total_steps 1000000, learning_rate 0.0003,"
    " normalize_observations True, entropy_cost 0.0, epochs 10,"
    " unroll_length 256"
  )
  actual = configs.values(asked.run)
  presets = values("ppo", "", env="Pendulum-v1", recurrent=True)
  changed = {key: actual[key] for key in actual if actual[key] != presets[key]}
  assert changed == {"minibatches": 2, "num_envs": 16}


@pytest.mark.parametrize(
  ("name", "words", "begin"),
  [
    ("ppo", "--env gymnasium:make --env-options id=CartPole-v1", ""),
    ("ppo", "--env Taxi-v3", ""),
    ("ppo", "--env CartPole-v1 --reward-scale 1", ""),
    ("ppo", "--env Taxi-v3 --presets small", "small tasks: reward_scale 0.1"),
    ("ppo", "--env Pong-v5", "Atari (not measured): total_steps 10000000"),
    ("seed_vtrace", "--env Pong-v5", "Atari: total_steps 10000000"),
    # Only presets of the default agent have been measured.
    (
      "impala",
      "--env Pendulum-v1 --agent a2c --presets continuous",
      "continuous actions (not measured): ",
    ),
    ("anakin_ppo", "--env seedx:Breakout-MinAtar", "MinAtar: total_steps"),
    ("td3", "--env HalfCheetah-v4", "MuJoCo: total_steps 1000000"),
    ("seed_sac", "--env CheetahRun-v1", "MuJoCo (not measured): total_steps"),
    # Continuous actions, but not of the tasks that the presets are made for.
    ("td3", "", ""),
    # Images, but not of the games that the presets are made for.
    ("ppo", "--env seedx:Breakout-MinAtar", "small tasks: reward_scale 0.1"),
    ("ppo", "--env tests.own_envs:Bandit", ""),
    # Presets that `--presets` requests or switches off.
    ("ppo", "--env tests.own_envs:Bandit --presets images", "Atari (not meas"),
    ("ppo", "--env Pong-v5 --presets none", ""),
    ("td3", "--env Pendulum-v1 --presets continuous", "MuJoCo: total_steps"),
    # Presets that a pipeline has for one of its agents.
    ("a3c", "--agent dqn --presets none", "dqn: envs_per_worker 4, unroll_"),
  ],
)
def test_presets_for_images_are_for_game_frames(name, words, begin):
  asked, lines = read(name, words)
  assert bool(lines) == bool(begin)
  if lines:
    assert lines[0].startswith(f"presets for {begin}")
  else:
    agent, default = asked.run.agent, experiments.load(name).config.agent
    assert agent == default and asked.run.total_steps < 10_000_000
    assert (agent.reward_clip, agent.stack_frames) == (0.0, 1)


def test_presets_that_an_experiment_lacks_are_refused(capfd):
  with pytest.raises(SystemExit):
    read("anakin_dqn", "--presets images")
  error = capfd.readouterr().err
  assert "--presets: expected auto, none, small, found" in error
  experiment = experiments.load("dqn")
  with pytest.raises(types.ConfigError, match="none, small, images, found"):
    experiment.with_presets(experiment.config, kind="continuous")


@pytest.mark.parametrize(("name", "agent"), PAIRS)
def test_settings_have_unique_names_sentences_and_ranges(name, agent):
  # Raises if two settings have the same name.
  config = requests.of(experiments.load(name), agent)
  settings = configs.settings(config)
  assert [key for key, setting in settings.items() if not setting.help] == []
  common = {"env", "total_steps", "seed", "learning_rate", "run_dir"}
  assert common <= {*settings}
  positive = {x for x in settings if x.startswith(("num_env", "envs_per"))}
  counts = {"unroll_length", "batch_size", "total_steps", "pairs"}
  counts &= {*settings}
  if "dataset" not in settings:  # Offline, no environment acts.
    assert (positive or "pairs" in counts) and len(counts) >= 2
  for key in positive | counts:
    with pytest.raises(types.ConfigError, match=f"expected {key} "):
      configs.replaced(config, {key: 0})


@pytest.mark.parametrize(
  ("name", "words", "expected"),
  [
    ("ppo", "", {"num_envs", "unroll_length", "entropy_cost", "epochs"}),
    ("seed_vtrace", "", {"num_actors", "envs_per_actor", "batch_size"}),
    ("gorila_dqn", "", {"num_servers", "num_workers", "replay_batch_size"}),
    ("anakin_ppo", "--agent a2c", {"num_envs", "unroll_length", "vary"}),
  ],
)
def test_help_begins_with_ten_common_settings(name, words, expected, capfd):
  with pytest.raises(SystemExit):
    read(name, f"{words} --help")
  output = capfd.readouterr().out.partition("often changed:\n")[2]
  first = output.partition("\n\n")[0]
  flags = re.findall(r"(?m)^  --([\w-]+)", first)
  settings = {flag.replace("-", "_") for flag in flags}
  assert len(flags) == len(settings) == 10
  always = {"total_steps", "presets", "run_dir", "env", "learning_rate"}
  assert settings > always | expected
  # Settings of several hosts come last in their part.
  places = [output.find(x) for x in ("--micro-batches", "--host-index")]
  if name == "gorila_dqn":
    assert places == [-1, -1]
  else:
    assert 0 < places[0] < places[1]


# Presets of a custom experiment


def custom_experiment():
  """Returns an experiment whose presets differ in `num_envs`."""
  agents = {"one": vtrace.Config(), "other": vtrace.Config(td_lambda=0.5)}
  return app.Experiment(
    sync.Config(agent=agents["one"]),
    images=app.preset(num_envs=1),
    continuous=app.preset(num_envs=2),
    recurrent=app.preset(num_envs=3),
    agents=agents,
    by_agent={"other": app.preset(num_envs=4)},
  )


def test_a_function_cannot_be_a_preset_for_an_environment():
  with pytest.raises(types.ConfigError, match=r"made by app\.preset"):
    app.Experiment(sync.Config(agent=vtrace.Config()), images=lambda c: c)


def test_a_preset_for_games_of_another_kind_is_refused():
  images = app.preset(games="MuJoCo")
  reason = "for images for one of .*, found games 'MuJoCo'"
  with pytest.raises(types.ConfigError, match=reason):
    app.Experiment(sync.Config(agent=vtrace.Config()), images=images)


@pytest.mark.parametrize(
  ("env_id", "recurrent", "agent", "expected"),
  [
    ("CartPole-v1", False, "one", ["small tasks"]),
    ("CartPole-v1", True, "other", ["small tasks", "a memory", "other"]),
    ("Pong-v5", True, "one", ["Atari", "a memory"]),
    ("Pong-v5", False, "other", ["Atari", "other"]),
    ("Pendulum-v1", False, "one", ["small tasks", "continuous actions"]),
    ("RubiksCube-v0", False, "one", []),
  ],
)
def test_presets_follow_the_environment_and_the_last_one_wins(
  env_id, recurrent, agent, expected
):
  experiment = custom_experiment()
  config = configs.replaced(
    experiment.with_agent(agent), {"env": env_id, "recurrent": recurrent}
  )
  assert config.agent.td_lambda == (0.5 if agent == "other" else 1.0)
  changed, applied = experiment.with_presets(config, agent)
  assert [x.name for x in applied] == expected
  envs_of = {"Atari": 1, "continuous actions": 2, "a memory": 3, "other": 4}
  last = expected[-1] if expected else ""
  assert changed.num_envs == envs_of.get(last, 16)
  has_own = env_id in ("CartPole-v1", "Pong-v5", "Pendulum-v1")
  assert (changed.agent != config.agent) == has_own


@pytest.mark.parametrize(
  ("transform", "expected"), [("nested", ["Atari"]), ("mean", [])]
)
def test_game_frames_may_be_anywhere_in_an_observation(transform, expected):
  env = envs.Config("Pong-v5", observation_transform=f"{__name__}:{transform}")
  config = dataclasses.replace(custom_experiment().config, env=env)
  _, applied = custom_experiment().with_presets(config)
  assert [x.name for x in applied] == expected


def nested(observation):
  return {"deep": {"image": observation}}


def mean(observation):
  return observation.mean(axis=(1, 2, 3), keepdims=True)[..., 0, 0]


def test_an_empty_name_is_the_default_agent():
  experiment = custom_experiment()
  assert experiment.default_agent == "one"
  assert experiment.with_agent("") == experiment.config
  with pytest.raises(types.ConfigError, match="one, other, found 'third'"):
    experiment.with_agent("third")
