"""Sessions of thin actors, and the checks and counts of their messages."""

import functools

import dm_env
import jax
import numpy as np
import pytest

from seedx import envs, wire
from seedx.acting import inference, thin_actor
from seedx.agents import dqn
from seedx.runtime import counters
from tests.acting import devices


def _sizes(num_actors, num_devices, envs_per_actor):
  """Returns an epsilon ladder, and the `Sizes` of each inference device."""
  spec = envs.spec(devices.CARTPOLE)
  agent = dqn.Config(epsilon_ladder=True).make(spec)
  sizes = inference.Config(inference_devices=tuple(range(num_devices))).sizes(
    agent,
    thin_actor.Config(num_actors=num_actors, envs_per_actor=envs_per_actor),
    period=2,
    share_size=2,
  )
  return agent.exploration(num_actors * envs_per_actor), sizes


def _served(envs_per_actor, num_actors=1, num_devices=1):
  """Returns an inference server, and a function that opens a session."""
  _, sizes = _sizes(num_actors, num_devices, envs_per_actor)
  served = devices.Served(sizes)
  return served, functools.partial(served.open, envs_per_actor)


@pytest.mark.parametrize(("actors", "devices"), [(2, 1), (7, 3)])
def test_an_epsilon_ladder_spans_the_devices(actors, devices):
  ladder, sizes = _sizes(actors, devices, envs_per_actor=3)
  assert len(set(ladder.tolist())) == len(ladder) == actors * 3
  explored = np.concatenate([each.exploration for each in sizes])
  np.testing.assert_array_equal(explored, ladder)
  for each in sizes:
    assert each.layout.num_slots == len(each.exploration)
    assert each.padded[-1] <= sizes[0].padded[-1]


def test_returns_are_reported_for_the_slots_that_explore_least():
  """Each session counts the returns of its own slots."""
  ladder, _ = _sizes(4, 2, envs_per_actor=2)
  served, connect = _served(2, num_actors=4, num_devices=2)
  acted, actors = served.acted, [connect() for _ in range(4)]
  # The slots of each session; device 0 has slots 0 to 3, device 1 has 4 to 7.
  held = [0, 1], [4, 5], [2, 3], [6, 7]
  reported = counters.explores_least(ladder)
  assert reported.any() and not reported.all()
  for actor, slots_held in zip(actors, held, strict=True):
    for index in (0, 1):
      count = acted.returns.count
      for step_type in (dm_env.StepType.FIRST, dm_env.StepType.LAST):
        actor(devices.row(step_type, index=index))
      assert acted.returns.count - count == reported[slots_held[index]]


@pytest.mark.parametrize(
  "changes",
  [
    {"step_type": 0},
    {"reward": np.nan},
    {"observation": np.inf},
    {"index": 2},
    {"index": -1},
  ],
  ids=str,
)
def test_an_invalid_row_is_refused_and_counts_nothing(changes):
  served, connect = _served(envs_per_actor=2)
  acted, actor = served.acted, connect()
  actor(devices.row(0))
  with pytest.raises(wire.Refusal, match=r"expected .* found") as caught:
    actor(devices.row(**{"step_type": 2, **changes}))
  assert caught.value.code is wire.StatusCode.INVALID_ARGUMENT
  assert (acted.env_steps, acted.returns.count) == (0, 0)
  assert served.devices[0].rows == 1


def test_each_row_goes_to_its_slot_in_any_order():
  served, connect = _served(envs_per_actor=3)
  actor, batches = connect(), served.devices[0].batches

  def send(step_type, index):
    rows = [devices.row(step_type, index=k) for k in index]
    actor(jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows))

  sent = [0, 1, 2], [0, 1, 2], [2, 1], [1, 0, 2]
  for step_type, index in zip((0, 1, 1, 1), sent, strict=True):
    send(step_type, index)
  assert [x.slot.tolist() for x in batches] == [*sent]
  counts = [x.count.tolist() for x in batches]
  assert counts == [[0, 0, 0], [1, 1, 1], [2, 2], [3, 2, 3]]
  with pytest.raises(wire.Refusal, match="at most once"):
    send(1, [1, 1])


def test_unfinished_unrolls_of_a_lost_actor_are_counted():
  served, connect = _served(envs_per_actor=1)
  acted, layout, lost = served.acted, served.devices[0].sizes.layout, 0
  for steps in range(9):
    actor = connect()
    for k in range(steps):
      actor(devices.row(min(k, 1)))
    actor.close()
    begun = range(0, steps, layout.period)
    lost += sum(first + layout.length > steps for first in begun)
    assert acted.saved()["unrolls_discarded"] == lost
