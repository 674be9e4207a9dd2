"""The learner: micro-batches, cores, publishing and checkpoints."""

import concurrent.futures
import dataclasses
import functools
import threading
import weakref
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import metrics, sharding, trees, types
from seedx.agents import vtrace
from seedx.learning import experience, learner, pending, updates
from seedx.pipelines import impala
from seedx.runtime import progress, publication
from tests import conftest, programs, running
from tests.learning.cases import (
  BATCH,
  KEY,
  LENGTH,
  agent_of,
  config_of,
  make,
  ppo_agent,
  tiny_agent,
  unroll_of,
)

compiled_once = programs.compiled_once


def run(learner_, unrolls):
  """Learns from each unroll once, waits, and returns the metrics."""
  for unroll in unrolls:
    for batch in experience.Once()(learner_.shares(unroll)):
      learner_.learn(batch)
  learner_.finish()
  return learner_.measure()


def test_acting_parameters_may_have_constants():
  agent = agent_of()
  with_constant = dataclasses.replace(
    agent, acting=lambda state: (agent.acting(state), 0.5)
  )
  learner_ = make(agent=with_constant)
  parameters, constant = learner_.acting()
  assert constant == 0.5
  assert_close(parameters, make(agent=agent).acting())


def num_env_steps(unroll):
  """Returns the number of env steps of an unroll, counted one by one."""
  step_type = unroll.inputs.timestep.step_type
  return sum(
    int(step_type[t, b] != 0) for t in range(1, LENGTH) for b in range(BATCH)
  )


def assert_close(actual, expected, rtol=1e-5):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a, b, rtol=rtol, atol=rtol * float(np.abs(b).max())
    ),
    actual,
    expected,
  )


@functools.cache
def learned(num_cores, micro_batches):
  """Returns a learner after 5 updates, its initial params and first metrics."""
  learner_ = make(num_cores, micro_batches)
  params_before, line = learner_.state.params, run(learner_, [unroll_of()])
  assert learner_.state.updates == 1
  run(learner_, [unroll_of(seed) for seed in (1, 2, 3, 4)])
  return learner_, params_before, line


@pytest.mark.parametrize(
  ("num_cores", "micro_batches"), conftest.slow_but([(2, 4)], [(2, 1), (2, 4)])
)
def test_micro_batches_and_cores_learn_the_same_as_the_whole_batch(
  num_cores, micro_batches
):
  """Micro-batches and cores have different numbers of resets."""
  learner_, params_before, line = learned(num_cores, micro_batches)
  expected, _, expected_line = learned(1, 1)
  assert_close(learner_.state.params, expected.state.params)
  assert_close(learner_.state.statistics, expected.state.statistics)
  assert learner_.learned_steps == expected.learned_steps
  assert learner_.state.updates == 5
  for name in ("loss_policy_gradient", "loss_value", "entropy"):
    assert line[name] == pytest.approx(expected_line[name], rel=1e-4)
  gaps = jax.tree.map(
    lambda a, b: np.abs(a - b).max(), params_before, learner_.state.params
  )
  assert min(jax.tree.leaves(gaps)) > 0.01


def test_all_batches_count_alike_in_the_statistics():
  """All learned steps of a batch count alike, too."""
  batches = []
  for seed in range(5):
    timestep = unroll_of(seed).inputs.timestep
    batches.append(timestep.observation[:-1][timestep.step_type[1:] != 0])
  expected_mean = np.mean([batch.mean(0) for batch in batches], axis=0)
  squares = np.mean([np.square(batch).mean(0) for batch in batches], axis=0)
  (mean,), (variance,), (count,) = learned(2, 4)[0].state.statistics
  assert count == 5  # Micro-batches and cores do not count as batches.
  np.testing.assert_allclose(mean, expected_mean, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(variance, squares - expected_mean**2, rtol=1e-4)


def test_resets_count_neither_as_steps_nor_in_the_lag():
  """Micro-batches and cores differ in their numbers of resets."""
  unroll, other = unroll_of(), unroll_of(seed=5)
  version = -np.arange(LENGTH * BATCH, dtype=np.int32).reshape(LENGTH, BATCH)
  learner_ = make(2, 4)
  unroll = unroll._replace(version=version)
  line = learner_.measure()
  assert (line["learner_steps"], line["policy_lag"]) == (0, None)
  line = run(learner_, [unroll])
  weight = unroll.inputs.timestep.step_type[1:] != 0
  expected = -(version[:-1] * weight).sum() / weight.sum()
  assert line["policy_lag"] == pytest.approx(expected, rel=1e-5)
  assert abs(expected + version[:-1].mean()) > 0.1
  line = run(learner_, [other, unroll])
  assert line["policy_lag"] == pytest.approx(expected + 2, rel=1e-5)
  steps = 2 * num_env_steps(unroll) + num_env_steps(other)
  assert learner_.version == line["learner_steps"] == 3
  assert learner_.learned_steps == line["learned_steps"] == steps
  assert 0 < steps < 3 * BATCH * (LENGTH - 1)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_warm_up_compiles_the_update_and_changes_nothing(micro_batches):
  learner_ = make(1, micro_batches, tiny_agent())
  state_before, shares = learner_.state, learner_.shares(unroll_of())
  with running.compiled() as names:
    learner_.warm_up(learner_.shares(jax.tree.map(np.zeros_like, unroll_of())))
    line = learner_.measure()
    assert (line["learner_steps"], line["learned_steps"]) == (0, 0)
    assert line["policy_lag"] is None
    chex.assert_trees_all_equal(learner_.state, state_before)
    assert names
  with running.compiled() as names:
    (batch,) = experience.Once()(shares)
    learner_.learn(batch)
    learner_.publish()
    learner_.finish()
  assert not names
  assert learner_.version == 1 and learner_.state.params == 2


def test_an_update_copies_two_numbers_to_the_host(monkeypatch):
  """Metrics are copied only when they are measured, as one array."""
  copied, asarray = [], np.asarray

  def counted(value, *rest, **options):
    if isinstance(value, jax.Array):
      copied.append(value.shape)
    return asarray(value, *rest, **options)

  learner_ = make()
  run(learner_, [unroll_of()])
  monkeypatch.setattr(learner.np, "asarray", counted)
  measured = run(learner_, [unroll_of()] * 3)
  # Two scalars of each update: whether it was skipped, and its loss's weight.
  assert copied[:-1] == [()] * 6
  ((num_metrics,),) = copied[-1:]
  assert 2 < num_metrics < len(measured)


def test_no_metrics_are_an_empty_array():
  assert updates.Metrics.of({}).copied() == {}


def test_only_acting_parameters_are_touched_to_publish_them(monkeypatch):
  learner_, touched, local = make(agent=tiny_agent()), [], sharding.local
  monkeypatch.setattr(
    sharding, "local", lambda nest: touched.append(nest) or local(nest)
  )
  learner_.publish()
  assert [len(jax.tree.leaves(nest)) for nest in touched] == [1]
  assert len(jax.tree.leaves(learner_._state)) == 3


def test_arrays_that_are_on_their_device_are_not_copied_to_it(monkeypatch):
  learner_ = make()
  on_device = jax.device_put(unroll_of(), learner_.cores[0])
  moved = []
  monkeypatch.setattr(sharding.jax, "device_put", lambda *x: moved.append(x))
  (share,) = learner_.shares(on_device)
  assert learner_.inbox.put(share)
  learner_.publish()
  assert not moved


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_each_update_and_core_has_its_own_random_key(micro_batches):
  learner_ = make(2, micro_batches)
  seen = []
  for _ in range(2):
    line = run(learner_, [unroll_of()])
    seen += [line["first"], line["second"]]
  assert len(set(seen)) == 4


def test_shares_divide_a_batch_in_order():
  unroll, learner_ = unroll_of(), make(4)
  for i, share in enumerate(learner_.shares(unroll)):
    rows = slice(4 * i, 4 * i + 4)
    steps = jax.tree.map(lambda x, rows=rows: x[:, rows], tuple(unroll[:-1]))
    core_state = jax.tree.map(lambda x, rows=rows: x[rows], unroll.core_state)
    chex.assert_trees_all_equal(tuple(share.data), (*steps, core_state))
    assert share.priorities == ()
    for leaf in jax.tree.leaves(share):
      assert leaf.devices() == {jax.devices()[i]}


# Publishing


def test_each_device_that_acts_has_the_newest_published_parameters():
  devices = [jax.devices()[i] for i in (5, 3)]
  learner_ = make(2, acting_on=devices)
  first = jax.device_get(learner_.acting())

  def check(expected, version):
    for asked, device in ((None, devices[0]), *((x, x) for x in devices)):
      acting, actual_version = learner_.newest(asked)
      assert actual_version == version
      chex.assert_trees_all_equal(acting, expected)
      for leaf in jax.tree.leaves(acting):
        assert leaf.devices() == {device}

  check(first, 0)
  held, _ = learner_.newest()
  (batch,) = experience.Once()(learner_.shares(unroll_of()))
  learner_.learn(batch)
  check(first, 0)
  learner_.publish()
  second = jax.device_get(learner_.acting())
  check(second, 1)
  gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), first, second)
  assert max(jax.tree.leaves(gaps)) > 1e-3
  # Acting may still use the old parameters.
  learner_.learn(batch)
  chex.assert_trees_all_equal(held, first)


def test_acting_does_not_use_an_unfinished_update(monkeypatch):
  computed = []
  monkeypatch.setattr(
    publication._Version, "is_computed", lambda self: self.version in computed
  )
  learner_ = make()
  (batch,) = experience.Once()(learner_.shares(unroll_of()))
  for _ in range(3):
    learner_.learn(batch)
    learner_.publish(wait=False)
  assert learner_.newest()[1] == 0
  computed += [1, 2]
  acting, version = learner_.newest()
  assert version == 2
  computed.append(3)
  assert learner_.newest()[1] == 3
  gaps = jax.tree.map(
    lambda a, b: np.abs(a - b).max(), acting, learner_.newest()[0]
  )
  assert max(jax.tree.leaves(gaps)) > 1e-4


def test_a_version_is_computed_once_its_arrays_are_ready_on_every_device():
  done, under_way = (
    mock.Mock(**{"is_ready.return_value": x}) for x in (True, False)
  )
  devices = jax.devices()[:2]
  for last, expected in ((done, True), (under_way, False)):
    acting = dict(zip(devices, ([done, done], [done, last]), strict=True))
    assert publication._Version(acting, 1).is_computed() == expected


def test_a_run_measures_how_long_it_waits_for_experience():
  stop = threading.Event()
  learner_ = make(stop=stop)
  (share,) = learner_.shares(unroll_of())
  with concurrent.futures.ThreadPoolExecutor() as pool:
    ran = pool.submit(learner_.run, lambda: jax.tree.map(np.zeros_like, share))
    running.wait_until(
      lambda: learner_.measure()[metrics.WAIT_EXPERIENCE] > 0.9
    )
    assert learner_.version == 0 and not ran.done()
    assert learner_.inbox.put(share)
    running.wait_until(lambda: learner_.newest()[1] == 1)
    stop.set()
    learner_.inbox.close()
    ran.result(300)
  assert learner_.version == 1


# Checkpoints


@pytest.mark.parametrize("num_cores", [2, 1])
def test_a_restored_learner_continues_exactly(num_cores):
  learner_ = make(2)
  run(learner_, [unroll_of(), with_one("reward", np.nan)])
  # One update is still running.
  (batch,) = experience.Once()(learner_.shares(unroll_of(5)))
  learner_.learn(batch)
  saved = jax.device_get(learner_.saved())
  steps = num_env_steps(unroll_of()) + num_env_steps(unroll_of(5))
  counts = saved.counts
  assert (counts["learned_steps"], counts["updates_skipped"]) == (steps, 1)
  source = mock.Mock(wraps=experience.Once())
  other = learner.Learner(
    agent_of(), config_of(num_cores), source, jax.random.key(99)
  )
  other.restore(saved)
  source.resume.assert_called_once_with(3, saved.agent.resets)
  assert (other.version, other.learned_steps) == (3, steps)
  assert other.saved().counts["updates_skipped"] == 1
  acting, version = other.newest()
  assert version == 3
  chex.assert_trees_all_equal(acting, jax.device_get(learner_.acting()))
  chex.assert_trees_all_equal(
    other.policy({"agent": saved.agent}), jax.device_get(learner_.acting())
  )
  lines = [run(x, [unroll_of(), unroll_of(5)]) for x in (learner_, other)]
  check = chex.assert_trees_all_equal if num_cores == 2 else assert_close
  check(*(jax.device_get(x.state) for x in (learner_, other)))
  # These metrics do not depend on the number of cores.
  for name in ("first", "learner_steps", "learned_steps"):
    assert lines[0][name] == lines[1][name]
  assert (lines[0]["second"] == lines[1]["second"]) == (num_cores == 2)


@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_an_update_that_hangs_or_fails_is_not_saved(how, monkeypatch):
  monkeypatch.setattr(pending, "_COMPUTED_SECONDS", 0.1)
  learner_ = make(1)
  run(learner_, [unroll_of()])
  saved_before = jax.device_get(learner_.saved())
  (batch,) = experience.Once()(learner_.shares(unroll_of(5)))
  with monkeypatch.context() as patch:
    patch.setattr(publication, "is_ready", lambda nest: False)
    learner_.learn(batch)
  steps = saved_before.counts["steps"] + 1
  assert learner_.saved().counts["steps"] == steps
  failure = jax.errors.JaxRuntimeError("INTERNAL: lost")
  wait = mock.Mock(side_effect=failure if how == "fails" else None)
  leaf = mock.Mock(is_ready=lambda: how == "fails", block_until_ready=wait)
  with monkeypatch.context() as patch:
    patch.setattr(
      learner_, "_state", jax.tree.map(lambda _: leaf, learner_._state)
    )
    chex.assert_trees_all_equal(jax.device_get(learner_.saved()), saved_before)
  assert wait.called == (how == "fails")
  learner_.finish()


@pytest.mark.parametrize("how", ["ends", "runs"])
def test_an_update_begins_with_one_state_on_the_devices(how, monkeypatch):
  """The state before the last update is kept only while that update runs."""
  learner_ = make(1)
  update, first = learner_._update, weakref.ref(learner_._state.resets)
  is_kept = []

  def begun(state, inputs):
    is_kept.append(first() is not None)
    return update(state, inputs)

  monkeypatch.setattr(learner_, "_update", begun)
  batches = [
    *experience.Once()(learner_.shares(unroll_of())),
    *experience.Once()(learner_.shares(unroll_of(5))),
  ]
  is_ready = publication.is_ready
  with monkeypatch.context() as patch:
    patch.setattr(publication, "is_ready", lambda nest: False)
    learner_.learn(batches[0])
    if how == "ends":
      jax.block_until_ready(learner_._state)
      patch.setattr(publication, "is_ready", is_ready)
    learner_.learn(batches[1])
  assert is_kept == [True, how == "runs"]
  learner_.finish()


# Updates that are not finite


def with_one(name, value, at=(2, 3)):
  """Returns an unroll with one wrong number, among the first core's rows."""
  unroll = unroll_of()
  timestep = unroll.inputs.timestep
  wrong = getattr(timestep, name).copy()
  wrong[at] = value
  timestep = timestep._replace(**{name: wrong})
  return unroll._replace(inputs=unroll.inputs._replace(timestep=timestep))


@pytest.mark.parametrize(
  ("agent", "micro_batches"),
  conftest.slow_but(
    [(agent_of, 4)], [(agent_of, 1), (agent_of, 4), (ppo_agent, 1)]
  ),
)
def test_an_update_that_is_not_finite_is_skipped(agent, micro_batches):
  learner_ = make(2, micro_batches, agent())
  line = run(learner_, [unroll_of()])
  state_before = jax.device_get(learner_.state)
  assert not trees.non_finite(jax.tree.leaves(state_before))
  wrong = [
    with_one("reward", np.nan),
    with_one("reward", np.inf),
    with_one("observation", np.nan),
    # An infinite observation is clipped for the network, but not in statistics.
    with_one("observation", -np.inf),
  ]
  after = run(learner_, wrong)
  chex.assert_trees_all_equal(learner_.state, state_before)
  for leaf in jax.tree.leaves(learner_.state):
    for shard in leaf.addressable_shards[1:]:
      chex.assert_trees_all_equal(shard.data, leaf.addressable_shards[0].data)
  assert (learner_.version, after["updates_skipped"]) == (5, 4)
  waits = {metrics.WAIT_EXPERIENCE: 0.0, "updates_skipped": 0}
  assert after | waits == line | waits
  assert run(learner_, [unroll_of(5)])["learner_steps"] == 2
  assert not np.array_equal(
    jax.tree.leaves(learner_.state.params)[-1],
    jax.tree.leaves(state_before.params)[-1],
  )
  assert learner_.learned_steps == num_env_steps(unroll_of()) + num_env_steps(
    unroll_of(5)
  )


@pytest.mark.parametrize(
  ("broken", "value"), [(0, np.nan), (1, np.inf), (2, -np.inf)]
)
def test_one_number_that_is_not_finite_skips_the_update(broken, value):
  after = [np.ones((2, 3), np.float32), jnp.bfloat16(1), {"a": np.ones(4)}]
  before = jax.tree.map(np.zeros_like, after)
  after, before = [*after, np.int32(7)], [*before, np.int32(6)]
  keep = jax.jit(updates.keep_finite)
  chex.assert_trees_all_equal(keep(before, after), (after, False))
  wrong = jax.tree.map(np.array, after[broken])
  jax.tree.leaves(wrong)[0].flat[0] = value
  after[broken] = wrong
  chex.assert_trees_all_equal(keep(before, after), (before, True))


def test_all_cores_skip_an_update_that_is_not_finite_on_one():
  def wrong():
    core = jax.lax.axis_index(sharding.CORES)
    return jnp.where(core == 1, jnp.nan, 0.0)

  learner_ = make(4, 1, tiny_agent(wrong))
  assert run(learner_, [unroll_of()])["updates_skipped"] == 1
  shards = learner_._state.params.addressable_shards
  assert [float(x.data) for x in shards] == [3.0] * 4


def test_a_learner_ends_after_many_skipped_updates_in_a_row(monkeypatch):
  monkeypatch.setattr(progress, "_FATAL_SKIPPED", 3)
  learner_ = make(1)
  wrong = with_one("reward", np.nan)
  run(learner_, [wrong, wrong, unroll_of(), wrong, wrong])
  state_before = jax.device_get(learner_.state)
  with pytest.raises(RuntimeError, match="in 3 in a row"):
    run(learner_, [wrong, wrong])
  learner_.finish()
  saved = learner_.saved()
  chex.assert_trees_all_equal(saved.agent, state_before)
  assert saved.counts["updates_skipped"] >= 5


# New priorities


def test_new_priorities_reach_the_source_in_the_order_of_its_cores():
  """New priorities are the versions of unrolls."""
  seen = []

  def update(state, rng_key, batch):
    del rng_key
    priorities = batch.version[0].astype(jnp.float32)
    return state, types.LossOutput(jnp.float32(8), {}, priorities)

  class Recorded(experience.Once):
    def learned(self, windows, priorities):
      seen.append((windows, [np.asarray(x).tolist() for x in priorities]))

  agent = dataclasses.replace(tiny_agent(), update=update)
  learner_ = learner.Learner(agent, config_of(2), Recorded(), KEY)
  version = np.tile(np.arange(BATCH, dtype=np.int32), (LENGTH, 1))
  shares = learner_.shares(unroll_of()._replace(version=version))
  (batch,) = experience.Once()(shares)
  for number in range(3):
    learner_.learn(batch._replace(windows=[number, -number]))
  learner_.finish()
  halves = [list(range(BATCH // 2)), list(range(BATCH // 2, BATCH))]
  assert seen == [([k, -k], halves) for k in range(3)]


def test_each_batch_is_counted_once_even_over_a_resume():
  """A checkpoint has the running update, whose batch is not counted yet."""

  class Counted(experience.Once):
    def __init__(self):
      self.total = np.zeros(2)

    def counted(self, env_steps, batches=1):
      self.total += env_steps, batches

  first, resumed = (
    learner.Learner(tiny_agent(), config_of(1), Counted(), KEY)
    for _ in range(2)
  )
  (batch,) = experience.Once()(first.shares(unroll_of()))
  for _ in range(3):
    first.learn(batch)
  assert first.source.total.tolist() == [2, 2]
  resumed.restore(jax.device_get(first.saved()))
  resumed.learn(batch)
  assert resumed.source.total.tolist() == [1, 1]
  resumed.finish()
  assert resumed.source.total.tolist() == [2, 2]


@pytest.mark.parametrize(
  ("shape", "acting_on", "combined"),
  [
    ((), [], True),
    ((1, 1), [1], True),
    ((), [0], False),
    ((1, 1, 1, 1), [], False),
  ],
)
def test_due_updates_are_combined_unless_acting_or_images_would_be_slow(
  shape, acting_on, combined
):
  class Combined(experience.Once):
    count = 0

    def combine(self, update):
      self.count += 1

  def init(rng_key):
    return dataclasses.replace(agent.init(rng_key), params=jnp.zeros(shape))

  agent, source = tiny_agent(), Combined()
  learner.Learner(
    dataclasses.replace(agent, init=init),
    config_of(1),
    source,
    KEY,
    acting_on=[jax.devices()[i] for i in acting_on],
  )
  assert source.count == combined


# Refused configs


def test_micro_batches_that_do_not_divide_the_batch_are_refused():
  with pytest.raises(types.ConfigError, match="3 parts divide"):
    run(make(micro_batches=3), [unroll_of()])


def test_a_pipeline_with_an_inbox_needs_a_batch_size():
  with pytest.raises(types.ConfigError, match=r"a learner\.InboxConfig"):
    impala.Config(agent=vtrace.Config(), learner=learner.Config())


def test_metrics_include_those_of_the_source():
  class Counting(experience.Once):
    def measure(self):
      return {"unrolls_dropped": 7}

  learner_ = learner.Learner(agent_of(), learner.Config(), Counting(), KEY)
  assert learner_.measure()["unrolls_dropped"] == 7
