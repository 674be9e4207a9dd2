"""Leases of slots, and seeds of environments."""

import dataclasses
import itertools

import numpy as np
import pytest

from seedx import types, wire
from seedx.acting import leases
from seedx.agents import a2c
from seedx.pipelines import sync
from seedx.runtime import counters, seeding


def test_a_slot_has_one_lease_at_a_time_and_is_free_after_it():
  acted, seeds = counters.ActingCounts(), seeding.Seeds(0)
  leased = leases.Leases([5, 4], seeds, acted)
  first, second, third = (leased.grant({"num_envs": 2}) for _ in range(3))
  # Each lease is of the pool with more free slots.
  assert [x.pool for x in (first, second, third)] == [0, 1, 0]
  slots = [x.slots.tolist() for x in (first, second, third)]
  assert slots == [[0, 1], [0, 1], [2, 3]]
  envs = [x.envs.tolist() for x in (first, second, third)]
  assert envs == [[0, 1], [2, 3], [4, 5]]
  with pytest.raises(wire.Refusal, match=r"at most 2 .* found 3") as caught:
    leased.grant({"num_envs": 3})
  assert caught.value.code is wire.StatusCode.RESOURCE_EXHAUSTED
  assert leased.free == [1, 2]
  leased.close(first)
  assert leased.free == [3, 2]
  assert leased.grant({"num_envs": 3}).slots.tolist() == [0, 1, 4]


def test_runs_of_different_seeds_share_no_environment():
  first = {seeding.Seeds(seed).take(8) for seed in range(5)}
  gaps = [b - a for a, b in itertools.pairwise(sorted(first))]
  assert min(gaps) == 2**27
  # The first seeds of 2^14 runs are equally far apart.
  first = {seeding.Seeds(seed).take(1) for seed in range(2**14)}
  gaps = [b - a for a, b in itertools.pairwise(sorted(first))]
  assert gaps == [2**16] * (2**14 - 1)


def test_environment_seeds_stay_in_the_range_for_training():
  end = 2**30
  seeds = seeding.Seeds(end - 1)
  assert seeds.take(1) == end - 1
  assert seeds.take(4) == 0
  assert seeds.take(1) == 4
  seeds.restore(np.int64(end - 3))
  # Three seeds are left, so the next four begin at 0.
  assert seeds.take(4) == 0


@pytest.mark.parametrize("seed", [-1, 2**30])
def test_a_seed_out_of_range_is_refused(seed):
  config = sync.Config(agent=a2c.Config())
  with pytest.raises(types.ConfigError, match="expected seed from 0 to"):
    dataclasses.replace(config, seed=seed)
  assert dataclasses.replace(config, seed=2**30 - 1).seed == 2**30 - 1


def test_seeds_continue_from_a_checkpoint():
  seeds, again = seeding.Seeds(3), seeding.Seeds(3)
  first = seeds.take(10)
  again.restore(seeds.saved())
  assert again.take(5) == seeds.take(5) == first + 10
