"""The buffer of the newest batches, from which updates draw."""

import collections

import chex
import jax
import numpy as np
import pytest

from seedx import types
from seedx.agents import vtrace
from seedx.learning import experience, sampled
from seedx.pipelines import pool
from tests import running

SIZE = 6


def share_of(number, core=0):
  """Returns a share whose unroll k has 1000 * core + 10 * number + k."""
  values = 1000 * core + 10 * number + np.arange(SIZE)
  steps = np.stack([values, values], 0)
  unroll = types.Unroll(
    inputs=steps[..., None],
    action=steps,
    extras=(),
    version=steps,
    core_state=values[:, None],
  )
  return types.Share(jax.device_put(unroll, jax.devices()[core]))


def source_of(cores=1, **fields):
  config = sampled.Config(**fields)
  devices, key = jax.devices()[:cores], jax.random.key(0)
  return config.source(devices, key, experience.Once())


def drawn(batch, core=0):
  """Returns the unrolls of a batch; checks that all leaves are of one."""
  part = running.copied(batch.parts[core])
  for leaf in (part.inputs[..., 0], part.action):
    np.testing.assert_array_equal(leaf, part.version)
  np.testing.assert_array_equal(part.version[0], part.core_state[:, 0])
  return part.version[0]


def test_without_reuse_batches_are_learned_from_once():
  assert isinstance(source_of(), experience.Once)


@pytest.mark.parametrize("reuse", [2, 3])
def test_each_unroll_is_used_equally_often(reuse):
  source = source_of(reuse=reuse, buffer_batches=4)
  source.example([share_of(0)])
  counts, rounds = collections.Counter(), 300
  for number in range(rounds):
    batches = [drawn(x) for x in source([share_of(number)])]
    assert len(batches) == reuse
    for batch in batches:
      np.testing.assert_array_equal(batch % 10, np.arange(SIZE))
      age = number - batch // 10
      assert age.min() >= 0 and age.max() <= min(3, number)
      counts.update(age.tolist())
  # Each of the newest batches is drawn from equally often.
  expected = rounds * reuse * SIZE / 4
  assert min(counts.values()) > 0.85 * expected
  assert max(counts.values()) < 1.15 * expected


def test_cores_draw_from_their_own_buffers():
  source = source_of(2, reuse=2, buffer_batches=3)
  for number in range(3):
    shares = [share_of(number, core) for core in range(2)]
    first, _ = source(shares)
  parts = [drawn(first, core) for core in range(2)]
  assert np.all(parts[0] < 1000) and np.all(parts[1] >= 1000)
  assert np.any(parts[0] != parts[1] - 1000)
  assert [x.devices() for x in jax.tree.leaves(first.parts[1])[:1]] == [
    {jax.devices()[1]}
  ]


def test_an_example_changes_nothing_and_has_the_shapes_of_batches():
  shares = [share_of(5)]
  source, other = (source_of(reuse=2) for _ in range(2))
  example = source.example(shares)
  chex.assert_trees_all_equal_shapes_and_dtypes(
    example.parts[0], shares[0].data
  )
  for a, b in zip(source(shares), other(shares), strict=True):
    np.testing.assert_array_equal(drawn(a), drawn(b))


def test_a_resumed_run_draws_other_unrolls():
  fresh, resumed = (source_of(reuse=2) for _ in range(2))
  resumed.resume(100, 0.0)
  for number in range(8):
    pairs = zip(
      fresh([share_of(number)]), resumed([share_of(number)]), strict=True
    )
    differ = [np.any(drawn(a) != drawn(b)) for a, b in pairs]
  assert any(differ)
  assert fresh.kept is None


@pytest.mark.parametrize("reuse", [1, 4])
def test_schedules_cover_all_updates(reuse):
  config = running.replaced(
    pool.Config(agent=vtrace.Config(), total_steps=100_000), reuse=reuse
  )
  learned = config.plan.horizon.learned_steps
  steps = config.learner.batch_steps
  assert config.plan.horizon.updates == learned * reuse // steps


@pytest.mark.parametrize("fields", [{"reuse": 0}, {"buffer_batches": 0}])
def test_invalid_settings_are_refused(fields):
  with pytest.raises(types.ConfigError, match=f"{next(iter(fields))} from 1"):
    sampled.Config(**fields)
