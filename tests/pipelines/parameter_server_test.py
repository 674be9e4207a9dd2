"""Parameter servers: updates, versions, staleness and restarts."""

import dataclasses
import functools
import itertools
import threading

import chex
import jax
import jax.flatten_util
import numpy as np
import pytest

from seedx import envs, types, wire
from seedx.agents import base, dqn
from seedx.launch import admission
from seedx.pipelines.gorila import parameter_server, saved_shards
from seedx.runtime import process_parts
from seedx.wire import serving
from tests import fakes, running

SIZE = 7


@functools.cache
def first_shard(agent):
  return parameter_server.Shard(agent, 0)


def shard_of(agent, max_staleness=10):
  """Makes a shard; all shards of an agent share their compiled functions."""
  shard = parameter_server.Shard(agent, max_staleness)
  for name, value in vars(first_shard(agent)).items():
    if isinstance(value, jax.stages.Wrapped):
      setattr(shard, name, value)
  return shard


class Servers:
  """Shards on servers of this process; a server can stop, and restart empty."""

  def __init__(self, folder, agent, size, num_shards):
    self.addresses = [f"unix:{folder}/{k}" for k in range(num_shards)]
    self._parts = parameter_server.parts(size, num_shards)
    self._make = lambda: shard_of(agent, 10**6)
    self.shards = [None] * num_shards
    self.servers = [None] * num_shards
    for k in range(num_shards):
      self.start(k)

  def start(self, k):
    self.shards[k] = shard = self._make()
    part = self._parts[k]
    self.servers[k] = server = serving.Server(self.addresses[k], 32)
    shard.bind(server, part.stop - part.start)
    server.start()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for server in self.servers:
      server.stop(0)


def connect(client, servers):
  """Connects like a worker; tries again, since gRPC notices a restart late."""

  def is_connected():
    try:
      client.connect(servers.addresses)
    except wire.WireError:
      return False
    return True

  running.wait_until(is_connected)


def vector_of(version, vector, resets=0.0):
  return parameter_server.Vector(
    np.int32(version), np.float32(resets), np.asarray(vector, np.float32)
  )


@pytest.mark.parametrize(("size", "num_shards"), [(1, 3), (7, 7), (100, 7)])
def test_parts_cover_all_parameters_and_have_nearly_equal_sizes(
  size, num_shards
):
  parts = parameter_server.parts(size, num_shards)
  everything = np.arange(size)
  joined = np.concatenate([everything[part] for part in parts])
  np.testing.assert_array_equal(joined, everything)
  sizes = [part.stop - part.start for part in parts]
  assert len(parts) == num_shards and max(sizes) - min(sizes) <= 1


def test_pushes_of_many_workers_lose_no_update(tmp_path):
  workers, pushes, num_shards = 4, 10, 3
  start = np.arange(SIZE, dtype=np.float32)
  versions = [[] for _ in range(workers)]

  def work(place):
    client = parameter_server.Client(start, num_shards)
    client.connect(servers.addresses)
    for i in range(pushes):
      # Sums of whole numbers are exact in any order.
      applied, _ = client.push(np.full(SIZE, place * pushes + i, np.float32))
      assert applied
      versions[place].append(client.version)
    client.close()

  with Servers(tmp_path, fakes.adding_agent(), SIZE, num_shards) as servers:
    threads = [
      threading.Thread(target=work, args=(place,)) for place in range(workers)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(300)
    last = parameter_server.Client(np.zeros_like(start), num_shards)
    last.connect(servers.addresses)
  total = sum(range(workers * pushes))
  np.testing.assert_array_equal(last.params, start - total)
  assert last.version == workers * pushes
  assert [shard.version for shard in servers.shards] == (
    [workers * pushes] * num_shards
  )
  for seen in versions:
    assert len(seen) == pushes
    assert all(a < b for a, b in itertools.pairwise(seen))
  last.close()


def test_a_stale_gradient_is_dropped_and_the_reply_has_the_parameters():
  shard = shard_of(fakes.adding_agent(), max_staleness=2)
  shard.start(vector_of(0, [10.0]))
  for _ in range(3):
    reply = shard.push(vector_of(shard.version, [1.0]))
    assert reply.applied
  reply = shard.push(vector_of(0, [100.0]))
  assert not reply.applied
  assert reply.version == shard.version == 3
  assert reply.vector == [7.0]
  reply = shard.push(vector_of(1, [1.0]))
  assert reply.applied and reply.vector == [6.0]


def test_a_gradient_with_a_result_that_is_not_finite_is_not_applied():
  shard = shard_of(fakes.adding_agent(), max_staleness=2)
  shard.start(vector_of(0, [-3e38, 1.0]))
  before = shard.save(())
  reply = shard.push(vector_of(0, [3e38, 1.0]))
  assert not reply.applied
  assert reply.version == 0
  chex.assert_trees_all_equal(shard.save(()), before)
  assert shard.push(vector_of(0, [0.0, 1.0])).applied


def test_staleness_is_the_number_of_updates_by_other_workers(tmp_path):
  params = np.zeros(SIZE, np.float32)
  with Servers(tmp_path, fakes.adding_agent(), SIZE, 2) as servers:
    one, other = (parameter_server.Client(params, 2) for _ in range(2))
    one.connect(servers.addresses)
    other.connect(servers.addresses)
    gradient = np.ones(SIZE, np.float32)
    assert one.push(gradient) == (True, 0.0)
    assert one.push(gradient) == (True, 0.0)
    assert other.push(gradient) == (True, 2.0)
    assert one.push(gradient) == (True, 1.0)
    np.testing.assert_array_equal(one.params, -4 * gradient)
    # The target parameters are one update older.
    np.testing.assert_array_equal(one.target_params, -3 * gradient)
    assert one.transferred_bytes > 6 * SIZE * 4
    one.close()
    other.close()


def test_target_parameters_are_fetched_only_when_they_are_newer(tmp_path):
  params = np.zeros(SIZE, np.float32)
  with Servers(tmp_path, fakes.adding_agent(period=3), SIZE, 1) as servers:
    method = servers.servers[0]._methods[parameter_server.TARGET]
    client = parameter_server.Client(params, 1)
    client.connect(servers.addresses)
    before = method.transferred_bytes
    call_bytes = before  # The client called once, when it connected.
    for _ in range(7):
      client.push(np.ones(SIZE, np.float32))
      newest = servers.shards[0].target(()).vector
      np.testing.assert_array_equal(client.target_params, newest)
    assert method.transferred_bytes - before == 2 * call_bytes > 0
    client.close()


def test_the_first_worker_gives_an_empty_shard_its_parameters():
  shard = shard_of(fakes.adding_agent())
  with pytest.raises(wire.Refusal, match="no parameters yet") as caught:
    shard.push(vector_of(0, [1.0]))
  assert caught.value.code is wire.StatusCode.UNAVAILABLE
  shard.start(vector_of(3, [5.0]))
  reply = shard.start(vector_of(9, [8.0]))
  assert reply.version == 3 and reply.vector == [5.0]


@pytest.mark.parametrize(
  ("method", "version", "value", "resets"),
  [
    ("start", 0, np.nan, 0.0),
    ("start", -1, 1.0, 0.0),
    ("start", 2**31 - 1, 1.0, 0.0),
    ("push", 5, -np.inf, 0.0),
    ("push", 6, 1.0, 0.0),
    ("push", -1, 1.0, 0.0),
    ("push", 5, 1.0, -0.5),
    ("push", 5, 1.0, 1.5),
    ("push", 5, 1.0, np.nan),
  ],
)
def test_an_invalid_message_leaves_a_shard_unchanged(
  method, version, value, resets
):
  shard = shard_of(fakes.adding_agent())
  if method == "push":
    shard.start(vector_of(5, [3.0]))
  with pytest.raises(wire.Refusal, match=r"expected .* found") as caught:
    getattr(shard, method)(vector_of(version, [value], resets))
  assert caught.value.code is wire.StatusCode.INVALID_ARGUMENT
  reply = shard.start(vector_of(5, [3.0]))
  assert reply.version == 5 and reply.vector == [3.0]
  assert shard.push(vector_of(5, [1.0])).vector == [2.0]


def restored(version, value):
  shard = shard_of(fakes.adding_agent())
  shard.start(vector_of(version, [value]))
  return shard.save(())


def test_a_shard_can_be_restored_until_its_first_gradient():
  shard = shard_of(fakes.adding_agent())
  shard.start(vector_of(0, [3.0]))
  shard.restore(restored(4, 5.0))
  shard.restore(restored(7, 6.0))
  assert shard.push(vector_of(7, [1.0])).vector == [5.0]
  with pytest.raises(wire.Refusal, match="version is 8") as caught:
    shard.restore(restored(0, 0.0))
  # A resumed run waits until its servers have restarted.
  assert caught.value.code is wire.StatusCode.UNAVAILABLE
  assert shard.push(vector_of(8, [1.0])).vector == [4.0]


def test_a_restore_is_repeated_if_the_server_stops_meanwhile(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(saved_shards, "_RETRY_SECONDS", 0.01)
  agent = fakes.adding_agent()
  start = agent.start(np.arange(SIZE, dtype=np.float32), 3)
  agent = dataclasses.replace(agent, init=lambda _: start)
  call, failures = wire.Client.call, [wire.StatusCode.CANCELLED]

  def fail_first(self, *args, **keywords):
    if failures:
      raise wire.WireError(failures.pop(), "the server is stopping")
    return call(self, *args, **keywords)

  monkeypatch.setattr(wire.Client, "call", fail_first)
  with Servers(tmp_path, agent, SIZE, 1) as servers:
    addresses = admission.Addresses(1, servers.addresses)
    states = saved_shards.SavedShards(agent, addresses, threading.Event())
    states.restore(process_parts.PartState(start, ()))
    states.give_restored()
    assert states.are_ready()
    state = states.saved().agent
  np.testing.assert_array_equal(state.params, start.params)
  assert state.updates == 3


@pytest.mark.parametrize(("name", "value"), [("x", np.nan), ("updates", -1)])
def test_an_invalid_state_is_not_restored(name, value):
  shard = shard_of(fakes.adding_agent())
  leaves = [
    np.full_like(leaf, value)
    if (leaf.dtype.kind == "i") == (value == -1)
    else leaf
    for leaf in restored(4, 5.0)
  ]
  with pytest.raises(wire.Refusal, match=r"expected .* found") as caught:
    shard.restore(leaves)
  assert caught.value.code is wire.StatusCode.INVALID_ARGUMENT
  assert shard.version == -1


def test_a_restarted_shard_gets_its_parameters_back_from_a_worker(tmp_path):
  start = np.arange(SIZE, dtype=np.float32)
  with Servers(tmp_path, fakes.adding_agent(), SIZE, 2) as servers:
    client = parameter_server.Client(start, 2)
    client.connect(servers.addresses)
    for _ in range(5):
      client.push(np.ones(SIZE, np.float32))
    servers.servers[1].stop(0)
    with pytest.raises(wire.WireError) as caught:
      client.push(np.ones(SIZE, np.float32))
    assert caught.value.code is wire.StatusCode.UNAVAILABLE
    with pytest.raises(wire.WireError):
      client.connect(servers.addresses)
    servers.start(1)
    connect(client, servers)
    # The other shard has applied its part of the lost gradient.
    half = SIZE // 2
    np.testing.assert_array_equal(client.params[:half], start[:half] - 6)
    np.testing.assert_array_equal(client.params[half:], start[half:] - 5)
    assert [shard.version for shard in servers.shards] == [6, 5]
    assert client.push(np.ones(SIZE, np.float32))[0]
    np.testing.assert_array_equal(client.params[half:], start[half:] - 6)
    client.close()


@functools.cache
def scheduled(target_rate=1.0):
  """Returns an agent whose learning rate falls to 0 in 10 updates."""
  config = dqn.Config(
    hidden_sizes=(4,),
    target_period=2,
    target_rate=target_rate,
    learning_rate_end=0.0,
    max_gradient_norm=1e6,
  )
  spec = envs.spec(envs.Config("CartPole-v1"))
  return config.make(spec, None, base.Horizon(100, 10))


def flat_of(params):
  return np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)])


@pytest.mark.parametrize("target_rate", [1.0, 0.1])
def test_shards_together_update_like_the_whole_agent(target_rate):
  agent, num_shards = scheduled(target_rate), 2
  whole = jax.jit(agent.init)(jax.random.key(0))
  flat = flat_of(whole.params)

  @jax.jit
  def apply(state, gradient):
    _, unravel = jax.flatten_util.ravel_pytree(state.params)
    return agent.apply(state, base.Gradients(unravel(gradient)))

  shards = [shard_of(agent) for _ in range(num_shards)]
  parts = parameter_server.parts(flat.size, num_shards)
  for shard, part in zip(shards, parts, strict=True):
    shard.start(vector_of(0, flat[part]))
  rng = np.random.default_rng(0)
  for version in range(5):
    gradient = rng.normal(size=flat.size).astype(np.float32)
    whole = apply(whole, gradient)
    replies = [
      shard.push(vector_of(version, gradient[part]))
      for shard, part in zip(shards, parts, strict=True)
    ]
    targets = [shard.target(()) for shard in shards]
    for vectors, params in (
      (replies, whole.params),
      (targets, whole.target_params),
    ):
      joined = np.concatenate([each.vector for each in vectors])
      np.testing.assert_allclose(joined, flat_of(params), rtol=1e-5, atol=1e-6)
  assert np.abs(joined - flat).max() > 1e-4


def test_resets_do_not_advance_the_schedule():
  """A worker gives a restarted server the number of resets, too."""
  shard, steps = shard_of(scheduled()), []
  shard.start(vector_of(0, [0.0]))
  for version in range(4):
    reply = shard.push(vector_of(version, [0.1], resets=0.5))
  assert reply.version == 4 and reply.resets == 2
  for resets in (reply.resets, 0.0):
    other = shard_of(scheduled())
    other.start(vector_of(4, [0.0], resets))
    steps.append(float(other.push(vector_of(4, [0.1])).vector[0]))
  np.testing.assert_allclose(steps[0] / steps[1], 0.8 / 0.6, rtol=1e-5)


def test_an_agent_that_cannot_be_updated_in_parts_is_refused():
  with pytest.raises(types.ConfigError, match="from a part of its parameters"):
    parameter_server.Shard(fakes.counting_agent(), 1)
