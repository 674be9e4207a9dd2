"""The experiments that come with seedx: their settings, and their presets."""

import dataclasses
import functools

import pytest

from seedx import app, envs, types
from seedx.agents import dqn, vtrace
from seedx.app import configs, experiments, programs
from seedx.pipelines import sync
from tests import programs as programs_of_tests

# Each spec of a game is read from a file.
compiled_once = programs_of_tests.compiled_once

ENVS = ("CartPole-v1", "Pendulum-v1", "Pong-v5")
PAIRS = [
  (name, agent)
  for name in experiments.shipped()
  for agent in experiments.load(name).agents or [""]
]


@functools.cache
def preset(name, agent, **known):
  """A pipeline's config with its presets for what is known of it."""
  experiment = experiments.load(name)
  config = configs.replaced(experiment.with_agent(agent), known)
  return experiment.for_environment(config, agent)


def values(*arguments, **known):
  return configs.values(preset(*arguments, **known))


def makes_an_agent(name, agent, **known):
  """Has an agent made of all presets, or refused where there can be none."""
  config, reason = preset(name, agent, **known), ""
  if isinstance(config.agent, dqn.Config) and known["env"] == "Pendulum-v1":
    reason = "discrete actions"
  elif (name, agent) == ("impala", "dqn"):
    reason = "expected a replay"
  try:
    config.plan.agent(config.agent, envs.spec(config.env))
  except types.ConfigError as error:
    assert reason and reason in str(error)
  else:
    assert not reason


@pytest.mark.parametrize(("name", "agent"), PAIRS)
def test_every_preset_applies_and_makes_an_agent(name, agent):
  for env in ENVS:
    makes_an_agent(name, agent, env=env)
    if "recurrent" in values(name, agent, env=env):
      makes_an_agent(name, agent, env=env, recurrent=True)


@pytest.mark.parametrize(
  ("name", "agent"), [x for x in PAIRS if "anakin" not in x[0]]
)
def test_an_environment_has_what_it_needs(name, agent):
  found = [values(name, agent, env=env) for env in ENVS]
  vectors, continuous, images = found
  assert images["total_steps"] > vectors["total_steps"]
  # Rewards of games are of many sizes, and a picture shows no movement: what
  # an agent has for the one and for the other.
  recurrent = "lstm_size" in images and images["stack_frames"] == 1
  if recurrent:
    assert images["rescale"] and images["lstm_size"] > vectors["lstm_size"]
  else:
    assert (images["reward_clip"], images["reward_scale"]) == (1.0, 1.0)
    assert images["stack_frames"] > 1 == vectors["stack_frames"]
    assert vectors["reward_scale"] < 1.0 and not vectors["reward_clip"]
  if "entropy_cost" in vectors:
    # A density may be as wide as it likes.
    assert continuous["entropy_cost"] == 0.0 < vectors["entropy_cost"]


@pytest.mark.parametrize("name", ["ppo", "seed_ppo"])
@pytest.mark.parametrize("env", ENVS)
def test_with_a_memory_minibatches_are_of_whole_unrolls(name, env):
  plain = values(name, "", env=env)
  found = values(name, "", env=env, recurrent=True)
  size = found.get("num_envs", found.get("batch_size"))
  assert size % found["minibatches"] == 0
  changed = {key for key in found if found[key] != plain[key]}
  assert changed <= {"minibatches", "recurrent"} and "recurrent" in changed


def test_what_the_user_asks_for_beats_a_preset():
  words = "--env Pendulum-v1 --recurrent --minibatches 2 --entropy-cost 0.5"
  module = experiments.load_module("ppo")
  asked, presets = programs.read(
    module.EXPERIMENT, words.split(), module.__name__
  )
  assert presets == ("continuous", "recurrent")
  found = configs.values(asked.run)
  others = values("ppo", "", env="Pendulum-v1", recurrent=True)
  changed = {key: found[key] for key in found if found[key] != others[key]}
  assert changed == {"minibatches": 2, "entropy_cost": 0.5}


@pytest.mark.parametrize(("name", "agent"), PAIRS)
def test_a_setting_has_one_name_a_sentence_and_a_range(name, agent):
  # Two settings of one name would raise.
  made = programs.asked_of(experiments.load(name), agent)
  known = configs.settings(made)
  assert [key for key, setting in known.items() if not setting.help] == []
  assert {"env", "total_steps", "seed", "learning_rate", "run_dir"} <= {*known}
  least_one = {key for key in known if key.startswith(("num_env", "envs_per"))}
  counts = {"unroll_length", "batch_size", "total_steps"} & {*known}
  assert least_one and len(counts) >= 2
  for key in least_one | counts:
    with pytest.raises(types.ConfigError, match=f"expected {key} "):
      configs.replaced(made, {key: 0})


# Presets of an experiment of one's own


def tracing(trace):
  """An experiment whose changes leave their names in `trace`."""

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
  ("env_id", "recurrent", "agent", "expected"),
  [
    ("CartPole-v1", False, "one", []),
    ("CartPole-v1", True, "other", ["recurrent", "other"]),
    ("Pong-v5", True, "one", ["images", "recurrent"]),
    ("Pong-v5", False, "other", ["images", "other"]),
    ("Pendulum-v1", False, "one", ["continuous"]),
    ("RubiksCube-v0", False, "one", []),
  ],
)
def test_presets_follow_the_environment_the_last_wins(
  env_id, recurrent, agent, expected
):
  trace = []
  experiment = tracing(trace)
  config = configs.replaced(
    experiment.with_agent(agent), {"env": env_id, "recurrent": recurrent}
  )
  assert config.agent.td_lambda == (0.5 if agent == "other" else 1.0)
  changed = experiment.for_environment(config, agent)
  assert trace == expected
  assert changed.num_envs == (len(expected) + 1 if expected else 16)
  untouched = dataclasses.replace(changed, num_envs=config.num_envs)
  assert untouched == config


def test_images_may_be_anywhere_in_an_observation():
  trace = []
  # The byte arrays of this one are of two axes, and so no images.
  env = envs.Config("tests.own_envs:Masked")
  config = dataclasses.replace(tracing(trace).config, env=env)
  tracing(trace).for_environment(config)
  assert trace == []
  lifted = f"{__name__}:with_a_third_axis"
  config = configs.replaced(config, {"observation_transform": lifted})
  tracing(trace).for_environment(config)
  assert trace == ["images"]


def with_a_third_axis(observation):
  return {"deep": {"image": observation["inner"]["image"][:, None]}}


def test_an_agent_of_no_name_is_the_default():
  experiment = tracing([])
  assert experiment.default_agent == "one"
  assert experiment.with_agent("") == experiment.config
  with pytest.raises(types.ConfigError, match="one, other, found 'third'"):
    experiment.with_agent("third")
