"""The experiments that come with seedx: their settings, and their presets."""

import dataclasses

import numpy as np
import pytest

from seedx import app, envs, types
from seedx.agents import dqn, vtrace
from seedx.app import command_line, configs, experiments, programs
from seedx.pipelines import sync
from tests import conftest

SHIPPED = experiments.shipped()
ENVS = ("CartPole-v1", "Pendulum-v1", "Pong-v5")

# What each experiment has for each of `ENVS`, or for the discrete ones alone.
IMAGES = {
  "reward_clip": (0.0, 0.0, 1.0),
  "reward_scale": (0.1, 0.1, 1.0),
  "stack_frames": (1, 1, 4),
}
OF_A2C = IMAGES | {
  "discount": (0.99, 0.9, 0.99),
  "entropy_cost": (0.01, 0.0, 0.01),
  "learning_rate": (2e-3, 1e-3, 7e-4),
  "normalize_observations": (False, True, False),
  "td_lambda": (0.95, 0.95, 0.95),
  "total_steps": (500_000, 1_000_000, 10_000_000),
}
OF_A3C = OF_A2C | {
  "envs_per_worker": (16, 16, 4),
  "optimizer": ("rmsprop", "rmsprop", "rmsprop"),
  "total_steps": (500_000, 2_000_000, 10_000_000),
  "unroll_length": (16, 16, 5),
}
OF_DQN = {name: values[::2] for name, values in IMAGES.items()} | {
  "hidden_sizes": ((128, 128), (128, 128)),
  "huber_delta": (0.0, 1.0),
  "learning_rate": (5e-4, 1e-4),
  "max_gradient_norm": (10.0, 10.0),
  "optimizer": ("adam", "adam"),
  "replay_ratio": (4.0, 8.0),
  "total_steps": (500_000, 10_000_000),
}
OF_R2D2 = {
  "batch_size": (8, 16),
  "burn_in": (20, 40),
  "dueling": (True, True),
  "envs_per_actor": (8, 16),
  "epsilon_ladder": (True, True),
  "importance_exponent": (0.6, 0.6),
  "lstm_size": (64, 512),
  "n_step": (5, 5),
  "priority_exponent": (0.9, 0.9),
  "replay_batch_size": (32, 64),
  "replay_ratio": (4.0, 1.5),
  "rescale": (True, True),
  "sequence_length": (40, 80),
  "stack_frames": (1, 1),
  "total_steps": (500_000, 10_000_000),
  "unroll_length": (20, 40),
}
OF_VTRACE = IMAGES | {
  "discount": (0.99, 0.95, 0.99),
  "entropy_cost": (0.01, 0.0, 0.003),
  "learning_rate": (2e-3, 1e-3, 5e-4),
  "micro_batches": (1, 1, 4),
  "optimizer": ("adam", "adam", "adam"),
  "td_lambda": (1.0, 1.0, 0.95),
  "total_steps": (2_000_000, 2_000_000, 10_000_000),
  "unroll_length": (20, 20, 64),
}
OF_IMPALA = OF_VTRACE | {
  "batch_size": (32, 32, 4),
  "envs_per_actor": (32, 32, 8),
}
OF_PPO = IMAGES | {
  "clip_epsilon": (0.2, 0.2, 0.1),
  "entropy_cost": (0.005, 0.0, 0.01),
  "learning_rate": (2e-3, 3e-4, 2.5e-4),
  "normalize_observations": (False, True, False),
  "td_lambda": (0.95, 0.95, 0.95),
}
EFFECTIVE = {
  ("a2c", ""): OF_A2C | {"unroll_length": (16, 16, 16)},
  ("a3c", "a2c"): OF_A3C,
  ("a3c", "vtrace"): OF_A3C,
  ("a3c", "ppo"): OF_A3C,
  ("a3c", "dqn"): {
    **{name: values[::2] for name, values in IMAGES.items()},
    "envs_per_worker": (4, 4),
    "learning_rate": (5e-4, 7e-4),
    "n_step": (5, 5),
    "optimizer": ("rmsprop", "rmsprop"),
    "replayed": (False, False),
    "total_steps": (500_000, 10_000_000),
    "unroll_length": (5, 5),
  },
  **{
    ("anakin_ppo", agent): {
      "entropy_cost": (entropy_cost, 0.0, 0.01),
      "normalize_observations": (False, True, False),
      "num_envs": (64, 64, 64),
      "reward_clip": (0.0, 0.0, 0.0),
      "reward_scale": (0.1, 0.1, 1.0),
      "stack_frames": (1, 1, 1),
      "td_lambda": (td_lambda,) * 3,
      "total_steps": (500_000, 1_000_000, 10_000_000),
      "unroll_length": (32, 32, 128),
    }
    for agent, entropy_cost, td_lambda in (
      *(("ppo", 0.005, 0.95), ("a2c", 0.01, 0.95), ("vtrace", 0.01, 1.0)),
    )
  },
  **{
    ("anakin_dqn", agent): {
      "num_envs": (8, 8),
      "replay_ratio": (8.0, 8.0),
      "stack_frames": (1, 1),
      "target_period": (200, 200),
      "total_steps": (500_000, 500_000),
      "unroll_length": (4, 4),
    }
    for agent in ("dqn", "rainbow")
  },
  ("apex_dqn", ""): OF_DQN
  | {
    "batch_size": (8, 16),
    "dueling": (True, True),
    "envs_per_actor": (8, 16),
    "epsilon_ladder": (True, True),
    "fetch_interval": (400, 400),
    "replay_batch_size": (128, 64),
    "replay_min_steps": (2_000, 50_000),
    "target_period": (100, 2500),
    "unroll_length": (8, 16),
  },
  ("dqn", ""): OF_DQN
  | {
    "epsilon_steps": (50_000, 1_000_000),
    "num_envs": (8, 8),
    "replay_batch_size": (128, 32),
    "replay_min_steps": (2_000, 20_000),
    "replay_ratio": (8.0, 8.0),
    "target_period": (200, 1000),
    "unroll_length": (4, 16),
  },
  ("gorila_dqn", ""): OF_DQN
  | {
    "envs_per_worker": (4, 4),
    "epsilon_steps": (50_000, 1_000_000),
    "num_workers": (2, 2),
    "replay_batch_size": (128, 32),
    "replay_capacity": (100_000, 100_000),
    "replay_min_steps": (2_000, 20_000),
    "target_period": (100, 1000),
    "unroll_length": (8, 16),
  },
  ("impala", "a2c"): OF_IMPALA,
  ("impala", "vtrace"): OF_IMPALA,
  ("impala", "ppo"): OF_IMPALA | {"td_lambda": (0.95, 0.95, 0.95)},
  ("ppo", ""): OF_PPO
  | {
    "epochs": (8, 10, 4),
    "minibatches": (8, 32, 4),
    "num_envs": (16, 8, 8),
    "total_steps": (500_000, 1_000_000, 10_000_000),
    "unroll_length": (64, 256, 128),
  },
  ("seed_ppo", ""): OF_PPO
  | {
    "batch_size": (64, 16, 8),
    "envs_per_actor": (32, 8, 8),
    "epochs": (4, 10, 4),
    "minibatches": (4, 32, 4),
    "total_steps": (2_000_000, 2_000_000, 10_000_000),
    "unroll_length": (32, 128, 128),
  },
  ("r2d2", ""): OF_R2D2 | {"fetch_interval": (400, 400)},
  ("seed_r2d2", ""): OF_R2D2,
  ("rainbow", ""): OF_DQN
  | {
    "dueling": (True, True),
    "epsilon_end": (0.0, 0.0),
    "hidden_sizes": ((64, 64), (512,)),
    "huber_delta": (0.0, 0.0),
    "noise_scale": (0.1, 0.5),
    "replay_batch_size": (128, 32),
    "learning_rate": (5e-4, 6.25e-5),
    "importance_exponent_rise": (0.6, 0.6),
    "n_step": (3, 3),
    "num_atoms": (51, 51),
    "priority_exponent": (0.5, 0.5),
    "target_period": (200, 2000),
    "unroll_length": (4, 16),
  },
  ("seed_vtrace", ""): OF_VTRACE
  | {"batch_size": (64, 32, 4), "envs_per_actor": (128, 32, 8)},
}


def asked(name, agent="", env="CartPole-v1", *words):
  """What a command line comes to, with all presets."""
  experiment = experiments.load(name)
  argv = ["--env", env, *(["--agent", agent] if agent else []), *words]
  defaults = programs._defaults(experiment, name, argv)
  return command_line.parse(defaults, argv, name, None)


def pairs():
  """Each experiment with each agent that `--agent` may name."""
  return [
    (name, agent)
    for name in SHIPPED
    for agent in experiments.load(name).agents or [""]
  ]


def test_every_experiment_has_its_presets_here():
  """A new one needs an entry in `EFFECTIVE`."""
  assert {"a2c", "dqn", "impala", "seed_vtrace"} < {*SHIPPED}
  agents = {name for name in SHIPPED if experiments.load(name).agents}
  assert agents >= {"a3c", "impala"}
  # It is refused by the learner, for want of a replay.
  assert {*EFFECTIVE, ("impala", "dqn")} == {*pairs()}


@pytest.mark.parametrize(("name", "agent"), EFFECTIVE)
def test_settings_are_those_that_it_was_measured_with(name, agent):
  table = EFFECTIVE[name, agent]
  known = ENVS if len(table["stack_frames"]) == 3 else ENVS[::2]
  for place, env in enumerate(known):
    found = configs.values(asked(name, agent, env))
    expected = {key: values[place] for key, values in table.items()}
    assert {key: found[key] for key in expected} == expected
    if agent:
      assert found["agent"] == agent


@pytest.mark.parametrize("name", ["ppo", "seed_ppo"])
@pytest.mark.parametrize("env", ENVS)
def test_with_a_memory_minibatches_are_of_whole_unrolls(name, env):
  found = configs.values(asked(name, "", env, "--recurrent"))
  assert found["minibatches"] == 4
  others = configs.values(asked(name, "", env))
  changed = {key for key in found if found[key] != others[key]}
  assert changed <= {"minibatches", "recurrent"} and "recurrent" in changed


@pytest.mark.parametrize(
  ("name", "agent"),
  conftest.slow_but(
    [("a2c", ""), ("apex_dqn", ""), ("impala", "ppo")], pairs()
  ),
)
def test_every_preset_applies_and_makes_an_agent(name, agent):
  for env in ENVS:
    spec = envs.spec(envs.Config(env))
    for words in ((), ("--recurrent",)):
      made = asked(name, agent, env)
      if words and not hasattr(made.run.agent, "recurrent"):
        continue
      config = asked(name, agent, env, *words).run
      if isinstance(config.agent, dqn.Config) and env == "Pendulum-v1":
        with pytest.raises(types.ConfigError, match="discrete actions"):
          config.plan.agent(config.agent, spec)
      elif (name, agent) == ("impala", "dqn"):
        with pytest.raises(types.ConfigError, match="expected a replay"):
          config.plan.agent(config.agent, spec)
      else:
        config.plan.agent(config.agent, spec)


@pytest.mark.parametrize(("name", "agent"), pairs())
def test_a_setting_has_one_name_and_a_sentence(name, agent):
  # Two settings of one name would raise.
  known = configs.settings(programs.asked_of(experiments.load(name), agent))
  assert [key for key, setting in known.items() if not setting.help] == []
  everywhere = {"env", "total_steps", "seed", "learning_rate", "run_dir"}
  assert everywhere <= set(known)
  least_one = {key for key in known if key.startswith(("num_env", "envs_per"))}
  counts = {"unroll_length", "batch_size", "total_steps"} & set(known)
  assert least_one and len(counts) >= 2
  made = asked(name, agent)
  for key in least_one | counts:
    with pytest.raises(types.ConfigError, match=f"expected {key} "):
      configs.replaced(made, {key: 0})


def test_a_setting_means_the_same_everywhere():
  sentences = {}
  for name, agent in pairs():
    made = programs.asked_of(experiments.load(name), agent)
    for key, setting in configs.settings(made).items():
      sentences.setdefault(key, set()).add(setting.help)
  # Gorila's learner coordinates.
  differing = {key for key, found in sentences.items() if len(found) > 1}
  assert differing <= {"address"}


# Presets of an experiment of one's own


def tracing(trace):
  """An experiment whose changes say that they have been made."""

  def change(name):
    def preset(config):
      trace.append(name)
      return app.change(num_envs=len(trace) + 1)(config)

    return preset

  agents = {"one": vtrace.Config(), "other": vtrace.Config(td_lambda=0.5)}
  return app.Experiment(
    sync.Config(agent=agents["one"]),
    images=change("images"),
    continuous=change("continuous"),
    recurrent=change("recurrent"),
    agents=agents,
    by_agent={"other": change("other")},
  )


@pytest.mark.parametrize(
  ("env_id", "recurrent", "expected"),
  [
    ("CartPole-v1", False, []),
    ("CartPole-v1", True, ["recurrent"]),
    ("Pong-v5", False, ["images"]),
    ("Pong-v5", True, ["images", "recurrent"]),
    ("Pendulum-v1", False, ["continuous"]),
    ("RubiksCube-v0", False, []),
  ],
)
@pytest.mark.parametrize("agent", ["one", "other"])
def test_presets_follow_the_environment_the_last_wins(
  env_id, recurrent, expected, agent
):
  trace = []
  experiment = tracing(trace)
  config = configs.replaced(
    experiment.with_agent(agent), {"env": env_id, "recurrent": recurrent}
  )
  assert config.agent.td_lambda == (0.5 if agent == "other" else 1.0)
  changed = experiment.for_environment(config, agent)
  expected = [*expected, *(["other"] if agent == "other" else [])]
  assert trace == expected
  assert changed.num_envs == (len(expected) + 1 if expected else 16)
  untouched = dataclasses.replace(changed, num_envs=config.num_envs)
  assert untouched == config


def test_images_may_be_anywhere_in_an_observation():
  trace = []
  env = envs.Config("tests.own_envs:Masked")
  assert any(
    leaf.dtype == np.uint8
    for leaf in envs.spec(env).observation["inner"].values()
  )
  # It is of two axes, and so no image.
  config = dataclasses.replace(tracing(trace).config, env=env)
  tracing(trace).for_environment(config)
  assert trace == []
  lifted = dataclasses.replace(
    config,
    env=dataclasses.replace(
      env, observation_transform=f"{__name__}:with_a_third_axis"
    ),
  )
  tracing(trace).for_environment(lifted)
  assert trace == ["images"]


def with_a_third_axis(observation):
  return {"deep": {"image": observation["inner"]["image"][:, None]}}


def test_an_agent_of_no_name_is_the_default():
  experiment = tracing([])
  assert experiment.default_agent == "one"
  assert experiment.with_agent("") == experiment.config
  with pytest.raises(types.ConfigError, match="one, other, found 'third'"):
    experiment.with_agent("third")


def test_a_preset_of_no_setting_is_an_error():
  with pytest.raises(ValueError, match="lerning_rate"):
    app.change(lerning_rate=1.0)(tracing([]).config)
  # `seedx` finds it before it trains.
  with pytest.raises(ValueError, match="entropy_cost"):
    app.change(entropy_cost=0.0)(experiments.load("dqn").config)
