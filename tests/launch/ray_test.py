"""Tests of runs on a simulated Ray cluster, whose machines may die."""

import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from experiments import es, gorila_dqn, pool_vtrace, qt_opt, seed_vtrace
from seedx import app, envs, types, wire
from seedx.acting import local_actor, thin_actor
from seedx.agents import a2c
from seedx.app import certificates
from seedx.app.settings import configs
from seedx.launch import admission, ray_cluster, topology
from seedx.launch import config as launch_config
from seedx.pipelines import impala
from seedx.wire import serving
from tests import programs, running, with_ray

ray = ray_cluster.ray


class Machines:
  """A cluster: a head without room for actors, and machines with room.

  Attributes:
    address: address of the cluster.
  """

  def __init__(self, rooms):
    """Makes a machine for each number of actors in `rooms`."""
    with_ray.needed()
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    for tries_left in (1, 0):
      self._cluster = cluster_utils.Cluster()
      try:
        self._cluster.add_node(num_cpus=0)
        self._with_room = [
          self._cluster.add_node(num_cpus=room, resources={"actors": room})
          for room in rooms
        ]
        break
      except Exception:  # The start of Ray has timed out.
        self._cluster.shutdown()
        if not tries_left:
          raise
    self.address = self._cluster.address

  def kill(self, process):
    (node,) = [
      node
      for node in self._with_room
      if node.all_processes["raylet"][0].process.pid == process.ppid()
    ]
    self._cluster.remove_node(node, allow_graceful=False)

  def close(self):
    self._cluster.shutdown()


@pytest.fixture
def machines(request, monkeypatch):
  for name, value in with_ray.AS_OTHERS.items():
    monkeypatch.setenv(name, value)
  made = Machines(getattr(request, "param", (4, 4)))
  yield made
  made.close()


@pytest.fixture(scope="module")
def security(tmp_path_factory):
  """Returns TLS and a token, which addresses other than loopback require."""
  pytest.importorskip("ray")
  host = ray().util.get_node_ip_address()
  folder = tmp_path_factory.mktemp("tls") / "files"
  assert certificates.main([str(folder), "--hosts", host]) == 0
  return wire.Security(
    tls_ca=str(folder / "ca.pem"),
    tls_certificate=str(folder / "certificate.pem"),
    tls_key=str(folder / "key.pem"),
    token_file=str(folder / "token"),
  )


FEW = {
  seed_vtrace: {"actors": thin_actor.Config(2, 16)},
  gorila_dqn: {"workers": local_actor.WorkersConfig(2, 4), "num_servers": 2},
  pool_vtrace: {"actors": thin_actor.Config(2, 16)},
  qt_opt: {"num_labellers": 2},
  es: {"env": envs.Config("CartPole-v1")},
}


def config_of(program, machines, security, total_steps):
  launching = launch_config.Config(
    launcher="ray",
    ray_address=machines.address,
    actor_resources={"actors": 1},
  )
  return dataclasses.replace(
    program.EXPERIMENT.config,
    total_steps=total_steps,
    launching=launching,
    security=security,
    **FEW[program],
  )


def node_processes(relays=False):
  """Returns the processes of nodes, or relays, of all machines."""
  processes = []
  for process in psutil.process_iter(["cmdline"]):
    if "seedx.launch" in (process.info["cmdline"] or []):
      with contextlib.suppress(psutil.Error):
        # Nodes of other tests have other parents.
        parent = process.parent()
        is_here = parent.pid == 1 or parent.name().startswith("ray::")
        is_relay = process.cmdline()[-1].startswith("relay-")
        if is_here and is_relay == relays:
          processes.append(process)
  return processes


@pytest.mark.parametrize(
  "program",
  [
    pytest.param(seed_vtrace, marks=pytest.mark.slow),
    pytest.param(gorila_dqn, marks=pytest.mark.long),
    pytest.param(pool_vtrace, marks=pytest.mark.slow),
    pytest.param(qt_opt, marks=pytest.mark.long),
    pytest.param(es, marks=pytest.mark.long),
  ],
)
def test_a_run_trains_on_a_cluster(program, machines, security, tmp_path):
  total_steps = 3_000 if program is qt_opt else 12_000
  config = config_of(program, machines, security, total_steps)
  if program is gorila_dqn:
    # The learner listens on all its addresses, and the nodes get one of them.
    port = programs.free_port()
    config = dataclasses.replace(
      config,
      address=f"0.0.0.0:{port}",
      env=envs.Config("tests.own_envs:cartpole"),
    )
  addresses = set()

  class Looks:
    def write(self, line):
      for node in node_processes():
        with contextlib.suppress(psutil.Error):
          words = node.cmdline()
          addresses.add("".join(words[words.index("seedx.launch") + 1 : -1]))

    def close(self):
      pass

  run = app.train(config, run_dir=tmp_path, quiet=True, sinks=[Looks()])
  assert run.metrics["env_steps"] >= total_steps
  assert run.metrics["learner_steps"] > 0
  assert run.restarts == 0
  # Servers connect to the learner, others to the relay of their machine.
  listens = program in (gorila_dqn, pool_vtrace)
  paths = {x.removeprefix("unix:") for x in addresses if x}
  assert paths and ("" in addresses) == listens
  running.wait_until(lambda: not node_processes() + node_processes(relays=True))
  assert not any(os.path.exists(os.path.dirname(path)) for path in paths)


@pytest.mark.long
# Two of the machines suffice for all processes.
@pytest.mark.parametrize(
  ("program", "machines", "processes", "total_steps"),
  [
    (seed_vtrace, (1, 1, 1), 2, 600_000),
    (gorila_dqn, (2, 2, 2), 4, 60_000),
  ],
  indirect=["machines"],
)
def test_a_run_continues_when_an_actor_relays_and_a_machine_die(
  program, machines, processes, total_steps, security, tmp_path
):
  config = config_of(program, machines, security, total_steps)

  class Kills:
    def __init__(self):
      self.maximum_after = 0
      kills = ((40, self.actor), (8, self.relays), (4, self.machine))
      self.left = [(total_steps // part, kill) for part, kill in kills]

    def write(self, line):
      if self.left and line["env_steps"] >= self.left[0][0]:
        self.left.pop(0)[1]()
      elif not self.left:
        self.maximum_after = max(self.maximum_after, len(node_processes()))

    def close(self):
      pass

    def actor(self):
      node_processes()[0].kill()

    def relays(self):
      for process in node_processes(relays=True):
        process.kill()

    def machine(self):
      machines.kill(node_processes()[0].parent())

  kills = Kills()
  run = app.train(config, run_dir=tmp_path, quiet=True, sinks=[kills])
  assert not kills.left
  assert kills.maximum_after == processes
  assert run.metrics["env_steps"] >= total_steps
  assert run.restarts >= 2


@pytest.mark.long
def test_the_learner_continues_when_its_machine_dies(
  machines, security, tmp_path
):
  """A signal to the driver stops the learner, which it started, in order."""
  words = ["--launcher", "ray", "--ray-address", machines.address]
  words += ["--learner-on-cluster", "--learner-resources", "actors=1"]
  words += ["--actor-resources", "actors=1", "--num-actors", "2"]
  words += ["--total-steps", "50000000", "--checkpoint-every-seconds", "2"]
  words += ["--run-dir", "run"]
  for name, value in dataclasses.asdict(security).items():
    words += [f"--{name.replace('_', '-')}", value] if value else []
  program = [sys.executable, "-m", "experiments.seed_vtrace", *words]
  environment = {**os.environ, "PYTHONPATH": str(programs.ROOT)}
  with (tmp_path / "log").open("w") as log:
    driver = subprocess.Popen(
      program, cwd=tmp_path, stdout=log, stderr=log, env=environment
    )
  run_dir = tmp_path / "run"
  try:
    running.wait_until(lambda: any((run_dir / "checkpoints").glob("[0-9]*")))
    first = programs.env_steps(run_dir)
    (learner,) = [
      process
      for process in psutil.process_iter(["cmdline"])
      if "ray::_Learner" in " ".join(process.info["cmdline"] or [])
    ]
    machines.kill(learner)
    running.wait_until(
      lambda: " continues from " in (tmp_path / "log").read_text()
    )
    running.wait_until(lambda: programs.env_steps(run_dir) > first + 50_000)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(600) == 143
  finally:
    driver.kill()
    driver.wait()
  text = (tmp_path / "log").read_text()
  assert "the learner continues from checkpoint" in text
  assert "interrupted; --resume" in text
  last = max(int(x.name) for x in (run_dir / "checkpoints").glob("[0-9]*"))
  assert last == programs.env_steps(run_dir)
  running.wait_until(lambda: not node_processes())


@pytest.mark.long
def test_wrong_options_end_the_run(machines, security, tmp_path):
  insecure = dataclasses.replace(security, insecure=True)
  config = config_of(seed_vtrace, machines, insecure, 10_000)
  learner_there = {"learner_on_cluster": True, "learner_resources": {"CPU": 0}}
  without_tls = {"security": wire.Security()}
  for changes, sinks, message in (
    ({"ray_address": "127.0.0.1:9"}, [], "expected a Ray cluster"),
    (without_tls, [], "expected TLS and a token"),
    ({"address": f"unix:{tmp_path}/socket"}, [], "HOST:PORT, or none"),
    ({**learner_there, "address": "192.0.2.9:1"}, [], "since it may move"),
    # On the cluster, the learner raises the error.
    ({**learner_there, **without_tls}, [], "expected TLS and a token"),
    (
      learner_there,
      [threading.Lock()],
      "expected a config that can be pickled",
    ),
  ):
    wrong = running.replaced(config, **changes)
    with pytest.raises(types.ConfigError, match=message):
      app.train(wrong, run_dir=tmp_path, quiet=True, sinks=sinks)
  assert not os.listdir(tmp_path)


def test_invalid_options_of_a_cluster_are_refused():
  with pytest.raises(types.ConfigError, match="expected launcher ray"):
    launch_config.Config(learner_on_cluster=True)
  for name in ("actor_resources", "learner_resources"):
    for resource, number, message in (
      ("actors", "two", "numbers"),
      ("actors", 1.5, "whole numbers"),
      ("memory", 1000, "CPU, GPU"),
    ):
      with pytest.raises(types.ConfigError, match=f"{message}.* as {name}"):
        launch_config.Config(**{name: {resource: number}})
  launch_config.Config(
    actor_resources={"GPU": 0.5}, learner_resources={"CPU": 1.5}
  )


@pytest.mark.parametrize(
  "env",
  [
    envs.Config("mine:make", env_options={"sizes": (3, 5)}),
    envs.Config("CartPole-v1"),
  ],
  ids=lambda env: env.env + env.observation_transform,
)
def test_a_server_runs_the_code_that_its_own_learner_names(env):
  """The node trusts its learner's settings that name code."""
  options = configs.in_json(env)
  addresses = admission.Addresses(1)
  played, stop = [], threading.Event()

  def play(config, ended):
    played.append(config.address)
    stop.set()

  node = topology.Node("server-0", play, impala.Config(agent=a2c.Config()))
  learner = serving.Server("127.0.0.1:0", 1)
  admission.Roles([node], "", options, {"server": addresses}).bind(learner)
  learner.start()
  try:
    (cluster_node,) = ray_cluster.on_cluster(
      [node], learner.address, wire.LOCAL, envs.code_in(options)
    )
    cluster_node.run(cluster_node.config, stop)
  finally:
    learner.stop(0)
  assert played == addresses.all()


@pytest.mark.slow
def test_a_cluster_that_other_machines_could_reach_is_not_used(monkeypatch):
  """Others can reach the first one; the second refuses this process."""
  module = pytest.importorskip("ray")
  monkeypatch.setenv("RAY_AUTH_TOKEN", "own")
  ended = []
  monkeypatch.setattr(module, "init", lambda *_, **__: None)
  monkeypatch.setattr(module, "shutdown", lambda: ended.append(True))
  monkeypatch.setattr(module.util, "get_node_ip_address", lambda: "192.0.2.9")
  with pytest.raises(types.ConfigError, match=r"found 192\.0\.2\.9 with Ray"):
    ray_cluster.Cluster(
      launch_config.Config(launcher="ray", ray_address="local")
    )
  assert ended

  def refused(*_, **__):
    raise module.exceptions.AuthenticationError("no token")

  monkeypatch.setattr(module, "init", refused)
  for address in ("local", "auto"):
    with pytest.raises(types.ConfigError, match="no token"):
      ray_cluster.Cluster(
        launch_config.Config(launcher="ray", ray_address=address)
      )


@pytest.mark.slow
@pytest.mark.parametrize("users", [None, "own"])
def test_a_token_of_this_process_is_hidden_from_later_programs(
  users, monkeypatch
):
  module = pytest.importorskip("ray")
  monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
  if users:
    monkeypatch.setenv("RAY_AUTH_TOKEN", users)
  monkeypatch.setattr(module, "shutdown", lambda: None)
  monkeypatch.setattr(module.util, "get_node_ip_address", lambda: "127.0.0.1")
  config = launch_config.Config(launcher="ray", ray_address="local")
  seen = []

  def init(*_, **__):
    seen.append(os.environ["RAY_AUTH_TOKEN"])
    if len(seen) == 2:
      raise OSError("no room")

  monkeypatch.setattr(module, "init", init)
  ray_cluster.Cluster(config).leave()
  assert os.environ.get("RAY_AUTH_TOKEN") == users
  with pytest.raises(types.ConfigError, match="no room"):
    ray_cluster.Cluster(config)
  assert os.environ.get("RAY_AUTH_TOKEN") == users
  ray_cluster.Cluster(config).leave()
  # Ray reads the token once in a process, so it must stay the same.
  assert len(set(seen)) == 1 and len(seen[0]) == (3 if users else 64)


def test_without_ray_the_error_names_what_to_install(monkeypatch):
  def missing(name):
    raise ImportError(f"No module named {name!r}")

  monkeypatch.setattr(ray_cluster.importlib, "import_module", missing)
  with pytest.raises(types.ConfigError, match=r"pip install \"seedx\[ray\]\""):
    ray_cluster.Cluster(launch_config.Config(launcher="ray"))


@pytest.mark.slow
@pytest.mark.parametrize("machines", [(1, 1)], indirect=True)
def test_a_population_survives_the_loss_of_a_machine(machines, tmp_path):
  run = tmp_path / "run"
  words = ["a2c --num-envs 4 --hidden-sizes 8 --checkpoint-every-seconds 0.2"]
  words += ["--search", "learning_rate=log:1e-5..1e-1", "--members", "2"]
  words += ["--env", "CartPole-v1", "--total-steps", "60000"]
  words += ["--ready-steps", "30000", "--ray-address", machines.address]
  program = subprocess.Popen(
    [sys.executable, "-m", "seedx", "population", *words, "--run-dir", run],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(programs.ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    folders = [run / f"members/00{k}" for k in range(2)]
    running.wait_until(
      lambda: program.poll() is not None or all(map(programs.steps_of, folders))
    )
    assert program.poll() is None, program.communicate()
    (trial,) = (
      x
      for x in psutil.process_iter(["cmdline"])
      if str(folders[1]) in (x.info["cmdline"] or [])
    )
    kept = programs.steps_of(folders[1])[-1]
    machines.kill(trial.parent())
    output, progress = program.communicate()
  finally:
    program.kill()
  assert program.returncode == 0, progress
  assert "members/001 died" in progress and "best member" in output
  for folder in folders:
    steps = [
      x["env_steps"] for x in programs.lines_of(folder / "metrics.jsonl")
    ]
    assert steps[-1] >= 60_000
    assert all(b >= kept for a, b in itertools.pairwise(steps) if b < a)
