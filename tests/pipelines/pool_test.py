"""The pipeline `pool`: its config, its nodes, and the places of actors."""

import pickle
import threading

import numpy as np
import pytest

from seedx import envs, types, wire
from seedx.acting import protocol, thin_actor
from seedx.launch import admission, topology
from seedx.runtime import process
from seedx.wire import serving
from tests import conftest, programs, running
from tests.pipelines import cells

compiled_once = programs.compiled_once
ENVS = 2


def config_of(folder, **changes):
  config = cells.config_of("pool", "vtrace", folder)
  config = running.replaced(config, inference_addresses=(), **changes)
  return config.with_sockets(str(folder))


def test_actors_are_divided_over_the_processes(tmp_path):
  config = config_of(tmp_path, num_actors=5, num_inference=2, envs_per_actor=3)
  made = running.Own(config)
  made.process.server.stop()
  agent = made.process.parts["agent"].agent
  slots = [x.layout.num_slots for (x,) in config._sizes(agent)]
  assert slots == [9, 6]
  *inference, actor = made.nodes
  assert [x.role for x in inference] == ["inference-0", "inference-1"]
  assert (actor.role, actor.count, actor.needs_jax) == ("actor", 5, False)
  for k, node in enumerate(inference):
    work = node.config
    assert work.address == f"unix:{tmp_path}/inference-{k}"
    assert work.actor == actor.config
    assert work.actor.address == f"unix:{tmp_path}/learner"
    message = topology.message(node, "")[topology.SIZE.size :]
    # They share the cores, or are on the GPU.
    assert pickle.loads(message)[2:4] == (2, True)


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"num_actors": 1}, "at most 1 .*found 2 in 2 processes"),
    (
      {"inference_addresses": ("a:1", "a:2", "a:3")},
      "expected 2 inference_add",
    ),
    ({"num_inference": 0}, "num_inference from 1"),
    ({"batch_size": 3, "micro_batches": 2}, "batch_size"),
  ],
)
def test_invalid_options_are_refused(tmp_path, changes, words):
  config = config_of(tmp_path)
  with pytest.raises(types.ConfigError, match=words):
    running.replaced(config, **changes).learn(process.Context())


def test_processes_that_join_get_numbers_and_are_found_by_their_addresses():
  addresses = admission.Addresses(2)
  assert addresses.at(0) == ""
  taken = [addresses.take(x) for x in ("localhost:1", "localhost:2")]
  assert [addresses.at(k) for k in taken] == ["localhost:1", "localhost:2"]


class Place(serving.FunctionSession):
  """A session that acts for an actor, until its server has answered enough."""

  def __init__(self, enough):
    super().__init__(self.act, {"first_seed": 0, "env_steps": 0})
    self.enough, self.rows = enough, 0

  def act(self, rows):
    self.rows += len(rows.index)
    if self.rows >= 50:
      self.enough.set()
    return np.zeros(len(rows.index), np.int32)


def test_an_actor_takes_a_place_that_is_free_and_returns_to_the_learner(
  tmp_path,
):
  env = envs.Config("CartPole-v1")
  layouts = protocol.act_layouts(envs.spec(env), ENVS)
  names = ("learner", "gone", "full", "first", "second")
  paths = [f"unix:{tmp_path}/{name}" for name in names]
  asked, enough = [], [threading.Event() for _ in range(2)]
  places = [Place(x) for x in enough]

  def direct(hello):
    asked.append(hello)
    welcome = {"addresses": paths[1:], "first_seed": 3 * len(asked)}
    return serving.FunctionSession(None, welcome)

  def refuse(hello):
    raise wire.Refusal(wire.StatusCode.RESOURCE_EXHAUSTED, "no slot is free")

  opens = [direct, None, refuse, *(lambda _, x=x: x for x in places)]
  servers = {}
  for name, path, opened in zip(names, paths, opens, strict=True):
    if opened is not None:
      servers[name] = serving.Server(path, 2)
      servers[name].bind_stream(protocol.ACT, opened, *layouts)
      servers[name].start()
  work = thin_actor.Work(paths[0], env, thin_actor.Config(1, ENVS), 0.05)
  stop = threading.Event()
  actor = threading.Thread(
    target=thin_actor.run, args=(work, stop), daemon=True
  )
  actor.start()
  try:
    assert enough[0].wait(60) and places[1].rows == 0
    # The end of a process is not the end of the run.
    servers["first"].stop(0)
    assert enough[1].wait(60) and len(asked) > 1
    stop.set()
    servers["second"].stop(0)
    actor.join(60)
    assert not actor.is_alive()
  finally:
    for server in servers.values():
      server.stop(0)
  assert all(x == {"num_envs": ENVS} for x in asked)


@pytest.mark.parametrize("reuse", conftest.slow_but([], [(2,)]))
def test_reuse_makes_more_updates_of_the_same_experience(reuse, tmp_path):
  made = running.Own(config_of(tmp_path, reuse=reuse, buffer_batches=2))
  last = cells.run_all(made)
  # A batch has 20 steps; some unrolls are on the way at the end.
  assert last["learner_steps"] > 1.5 * last["env_steps"] / 20
  assert last["learned_steps"] > 1.5 * last["env_steps"]
  assert last["policy_lag"] >= 0
