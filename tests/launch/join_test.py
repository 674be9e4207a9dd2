"""Tests of joining a run: the roles, and the refusals of both sides."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading

import numpy as np
import psutil
import pytest

from experiments import gorila_dqn, impala, seed_ppo, seed_vtrace
from seedx import envs, join, wire
from seedx.acting import protocol
from seedx.launch import admission, joining, topology
from seedx.wire import serving
from tests import programs, running

own_signals = programs.own_signals

ROLES = [
  topology.Node("actor", run=print, config=None, count=2),
  topology.Node("server-0", run=print, config=None, needs_jax=True),
  topology.Node("server-1", run=print, config=None, needs_jax=True),
]
OPTIONS = {"env": "CartPole-v1", "env_options": {}, "seed": 3, "agent": "dqn"}


class Learner:
  """A server that only assigns roles."""

  def __init__(self, folder, nodes=ROLES, experiment="ppo", **options):
    insecure = wire.Security(insecure=True)
    self.addresses = admission.Addresses(2, security=insecure)
    self.roles = admission.Roles(
      nodes, experiment, {**OPTIONS, **options}, {"server": self.addresses}
    )
    self.server = serving.Server(f"unix:{folder}/learner", 1)
    self.roles.bind(self.server)

  def __enter__(self):
    self.server.start()
    return self

  def __exit__(self, *_):
    self.server.stop(0)

  def ask(self, **hello):
    """Joins until the client is closed; returns the client and the welcome."""
    hello = {**dataclasses.asdict(joining.Hello(role="actor")), **hello}
    client = wire.Client(self.server.address)
    stays = threading.Event()
    requests = iter(lambda: stays.wait(600) and None, None)
    stream = client.stream(
      joining.JOIN, requests, wire.NOTHING, wire.NOTHING, hello
    )
    return client, stream.welcome

  def join(self, **hello):
    assignments = []
    joining.join(
      self.server.address,
      joining.Hello(**{"role": "actor", **hello}),
      lambda one, ended: assignments.append(one),
      threading.Event(),
    )
    return assignments[0] if assignments else None


def test_a_process_receives_its_role_the_experiment_and_options(tmp_path):
  with Learner(tmp_path, ROLES[:1]) as learner:
    options = {"seed": 3, "env": "CartPole-v1"}
    for role in ("actor", ""):  # The only role needs no name.
      assignment = learner.join(role=role, options=options)
      assert assignment == joining.Welcome("actor", False, "ppo", OPTIONS)


@pytest.mark.parametrize(
  ("hello", "message"),
  [
    ({"version": "0.0.9"}, "expected seedx .* at both ends, found 0.0.9"),
    ({"role": "worker"}, "expected --role actor or server, found worker"),
    ({"role": ""}, "expected --role actor or server, found none"),
    ({"experiment": "dqn"}, "learner's experiment ppo, found dqn"),
    ({"options": {"agent": "a2c"}}, 'learner\'s agent "dqn", found "a2c"'),
    ({"options": {"eps": 1.0}}, "options of the learner, found eps"),
    ({"options": []}, "expected options as dict, found"),
    ({"role": "server"}, r"where it listens \(--listen\), found nothing"),
  ],
)
def test_a_process_that_does_not_fit_is_refused_with_messages_on_both_sides(
  tmp_path, capfd, hello, message
):
  with Learner(tmp_path) as learner:
    with pytest.raises(wire.WireError, match=message) as caught:
      learner.ask(**hello)
    assert caught.value.code is wire.StatusCode.FAILED_PRECONDITION
    with pytest.raises(wire.WireError):
      learner.ask(**hello)
  err = capfd.readouterr().err
  assert err.count("refused a process that wanted to join: expected") == 1
  assert caught.value.message.removeprefix("join: ") in err


def test_a_peer_cannot_write_on_the_learners_terminal(tmp_path, capfd):
  with Learner(tmp_path) as learner, pytest.raises(wire.WireError):
    learner.ask(role="\x1b[2J\nnothing is wrong")
  assert "found ?[2J?nothing is wrong\n" in capfd.readouterr().err


def _answer_with(learner, assignment):
  """Makes a learner answer every process with an assignment."""
  method = learner.server._methods[joining.JOIN]
  method.open_session = lambda hello: serving.FunctionSession(
    lambda nothing: nothing, dataclasses.asdict(assignment)
  )


def test_a_learner_of_another_version_or_with_other_code_is_refused(tmp_path):
  with Learner(tmp_path) as learner:
    _answer_with(learner, joining.Welcome("actor", False, "", {}, "0.0.9"))
    with pytest.raises(wire.WireError, match=r"at both ends, found 0\.0\.9"):
      learner.join()
    _answer_with(
      learner, joining.Welcome("actor", False, "", {"env": "os:system"})
    )
    with pytest.raises(wire.WireError, match="os:system here too"):
      learner.join(options={"env": "my_env:make"})


@pytest.mark.parametrize("name", ["env", "observation_transform"])
def test_code_is_imported_only_if_the_joining_process_names_it_too(
  tmp_path, name
):
  with Learner(tmp_path, **{name: "os:system"}) as learner:
    with pytest.raises(wire.WireError, match="os:system here too"):
      learner.join()
    assert learner.join(options={name: "os:system"}).options[name]
    with pytest.raises(wire.WireError, match="found"):
      learner.join(options={name: "os:popen"})


def test_servers_register_addresses_and_keep_their_numbers(tmp_path):
  with Learner(tmp_path) as learner:
    with pytest.raises(wire.Refusal, match="0 of 2 have joined"):
      learner.addresses.all()
    first, welcome = learner.ask(role="server", address="a:1")
    assert welcome["role"] == "server-0"
    with pytest.raises(wire.Refusal, match="1 of 2 have joined"):
      learner.addresses.all()
    second, welcome = learner.ask(role="server", address="b:1")
    assert welcome["role"] == "server-1"
    assert learner.addresses.all() == ["a:1", "b:1"]
    with pytest.raises(wire.WireError, match="at most 2") as caught:
      learner.ask(role="server", address="c:1")
    assert caught.value.code is wire.StatusCode.RESOURCE_EXHAUSTED
    first.close()
    second.close()
    running.wait_until(lambda: not any(learner.addresses._held))
    # A server that joins again keeps its number; a new one gets the free one.
    again, welcome = learner.ask(role="server", address="b:1")
    assert welcome["role"] == "server-1"
    other, welcome = learner.ask(role="server", address="c:1")
    assert welcome["role"] == "server-0"
    assert learner.addresses.all() == ["c:1", "b:1"]
    again.close()
    other.close()


def test_only_fixed_addresses_are_accepted_each_for_one_process():
  insecure = wire.Security(insecure=True)
  addresses = admission.Addresses(2, ["a:1", "b:1"], insecure)
  assert addresses.all() == ["a:1", "b:1"]
  with pytest.raises(wire.Refusal, match="one of a:1, b:1, found c:1"):
    addresses.take("c:1")
  assert addresses.take("b:1") == 1
  with pytest.raises(wire.Refusal, match="another one at b:1"):
    addresses.take("b:1")


def test_a_process_without_a_place_ends_with_the_run(tmp_path, capfd):
  with Learner(tmp_path) as learner:
    learner.server._methods[joining.JOIN].max_streams = 1
    client, _ = learner.ask()
    joining_thread = threading.Thread(target=learner.join, daemon=True)
    joining_thread.start()
    running.wait_until(lambda: learner.server._handlers.last_full_seconds > 0)
    learner.server.stop()
    joining_thread.join(300)
    assert not joining_thread.is_alive()
    client.close()
  assert capfd.readouterr().err == "the run is over\n"


# Programs.

QUICK = ("--log-seconds", "0.1", "--hidden-sizes", "8")
FEW = ("--num-actors", 1, "--envs-per-actor", 4, "--batch-size", 4)
SHORT = ("--unroll-length", 5)


class Joiners:
  def __init__(self):
    self.programs = []

  def start(
    self, *words, program=("-m", "seedx.join"), cwd=None, **environment
  ):
    started = subprocess.Popen(
      [sys.executable, *program, *map(str, words)],
      cwd=cwd,
      env={**os.environ, "PYTHONPATH": str(programs.ROOT), **environment},
      stderr=subprocess.PIPE,
      text=True,
    )
    self.programs.append(started)
    return started

  def kill(self, program):
    program.kill()
    program.communicate()
    self.programs.remove(program)

  def ended(self, status=0):
    """Awaits all programs, checks their status; returns their stderr."""
    errors = [program.communicate(timeout=600)[1] for program in self.programs]
    assert [x.returncode for x in self.programs] == [status] * len(errors), (
      errors
    )
    assert "Traceback" not in "".join(errors)
    return errors


@pytest.fixture
def joiners():
  made = Joiners()
  yield made
  for program in list(made.programs):
    made.kill(program)


def test_a_process_without_a_learner_gives_up_with_status_3(tmp_path, capfd):
  address = f"unix:{tmp_path}/nobody"
  gives_up = ("--give-up-seconds", "0.5")
  assert join.main([address, *gives_up]) == 3
  assert "expected a server within 0.5 s" in capfd.readouterr().err


def test_a_schedulers_warning_does_not_end_a_process_that_joined(monkeypatch):
  def warned(address, hello, play, stop, config, security):
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGHUP)
    assert stop.wait(300)

  monkeypatch.setattr(joining, "join", warned)
  assert join.main(["localhost:1"]) == 128 + signal.SIGHUP


def _learn(experiment, address, *words):
  """Runs a learner that starts no nodes; returns the last line of metrics."""
  run_dir = address.removeprefix("unix:") + "-run"
  role = ("--role", "learner", "--address", address, "--run-dir", run_dir)
  assert programs.main(experiment, [*role, *QUICK, *map(str, words)]) == 0
  with open(f"{run_dir}/metrics.jsonl") as lines:
    return json.loads(lines.readlines()[-1])


@pytest.mark.slow
def test_servers_and_workers_join_in_any_order(tmp_path, joiners):
  address = f"unix:{tmp_path}/learner"
  joiners.start(address, "--role", "worker")
  for k in range(2):
    listen = f"unix:{tmp_path}/server-{k}"
    joiners.start(address, "--role", "server", "--listen", listen)
  words = "--num-workers 1 --total-steps 1500 --replay-min-steps 200"
  last = _learn(gorila_dqn, address, *words.split())
  joiners.ended()
  assert last["env_steps"] >= 1500 and last["learner_steps"] > 5


@pytest.mark.long
def test_workers_find_a_server_that_joins_at_another_address(tmp_path, joiners):
  address, run_dir = f"unix:{tmp_path}/learner", tmp_path / "run"
  words = ["--role", "learner", "--address", address, "--run-dir", run_dir]
  words += ["--num-servers", 1, "--num-workers", 1, "--replay-min-steps", 200]
  words += ["--total-steps", 10**8, *QUICK]
  learner = joiners.start(*words, program=("-m", gorila_dqn.__name__))
  joiners.start(address, "--role", "worker")
  serve = (address, "--role", "server", "--listen")
  first = joiners.start(*serve, f"unix:{tmp_path}/first")
  running.wait_until(lambda: programs.env_steps(run_dir) > 2000)
  joiners.kill(first)
  joiners.start(*serve, f"unix:{tmp_path}/second")
  before = programs.env_steps(run_dir)
  running.wait_until(lambda: programs.env_steps(run_dir) > before + 2000)
  learner.send_signal(signal.SIGINT)
  assert learner.wait(600) == 130
  joiners.programs.remove(learner)
  joiners.ended()


@pytest.mark.slow
def test_actors_join_before_the_learner_is_up(tmp_path, joiners):
  address = f"unix:{tmp_path}/learner"
  joiners.start(address)
  words = (*FEW, *SHORT, "--env", "Catch-v0", "--total-steps", 400)
  last = _learn(seed_vtrace, address, *words)
  (error,) = joiners.ended()
  assert error.endswith(f"joined {address} as actor\nthe run is over\n")
  assert last["env_steps"] >= 400 and last["learner_steps"] > 5


@pytest.mark.slow
def test_joined_actors_follow_a_learner_that_restarts(tmp_path, joiners):
  """The second learner starts late, and has options that the actors use."""
  address = f"unix:{tmp_path}/learner"
  run_dir = tmp_path / "first"
  words = ["--role", "learner", "--address", address, "--run-dir", run_dir]
  words += [*FEW, *SHORT, *QUICK, "--env", "CartPole-v0"]
  words += ["--total-steps", 10**8]
  learner = joiners.start(*words, program=("-m", seed_vtrace.__name__))
  joiners.start(address)
  running.wait_until(lambda: programs.env_steps(run_dir) > 500)
  joiners.kill(learner)
  words = (*FEW, *SHORT, "--env", "Catch-v0", "--total-steps", 2000)
  last = _learn(seed_vtrace, address, *words)
  (error,) = joiners.ended()
  assert error.endswith(f"joined {address} as actor\nthe run is over\n")
  assert last["env_steps"] >= 2000 and last["learner_steps"] > 5


@pytest.mark.slow
@pytest.mark.parametrize(
  ("experiment", "words"),
  [(seed_vtrace, []), (impala, ["--env", "CartPole-v1"])],
)
def test_actors_behind_one_connection_outlive_each_other_and_the_learner(
  experiment, words, tmp_path, joiners
):
  address = f"unix:{tmp_path}/learner"
  words = ["--role", "learner", "--address", address, *words, *SHORT, *QUICK]
  words += ["--num-actors", 2, "--envs-per-actor", 4, "--batch-size", 4]
  words += ["--total-steps", 10**8, "--run-dir"]

  def learn(run_dir):
    program = ("-m", experiment.__name__)
    learner = joiners.start(*words, run_dir, program=program)
    running.wait_until(lambda: programs.env_steps(run_dir) > 500)
    return learner

  machine = joiners.start(address, "--num-actors", 2)
  learner = learn(tmp_path / "first")
  process = psutil.Process(machine.pid)
  killed, kept = process.children()
  killed.kill()
  running.wait_until(lambda: len({*process.children()} - {killed}) == 2)
  (new,) = {*process.children()} - {killed, kept}
  before = programs.env_steps(tmp_path / "first")
  running.wait_until(
    lambda: programs.env_steps(tmp_path / "first") > before + 500
  )
  joiners.kill(learner)
  learner = learn(tmp_path / "second")
  assert {*process.children()} == {kept, new}
  learner.send_signal(signal.SIGINT)
  assert learner.wait(600) == 130
  joiners.programs.remove(learner)
  (error,) = joiners.ended()
  assert error.count("joined") == 2 and error.endswith("\nthe run is over\n")
  assert not kept.is_running() and not new.is_running()


def test_several_servers_cannot_have_one_address(capfd):
  words = ["localhost:1", "--num-actors", "2", "--listen", "localhost:2"]
  with pytest.raises(SystemExit, match="2"):
    join.main(words)
  assert "--num-actors of 1 with --listen" in capfd.readouterr().err


@pytest.mark.parametrize(("status", "code"), [(signal.SIGTERM, 143), (None, 0)])
def test_a_machine_leaves_nothing_behind(tmp_path, joiners, status, code):
  options = {"envs_per_actor": 2, "actor_batch_size": 2, "num_actors": 2}
  learner, received = Learner(tmp_path, ROLES[:1], "impala", **options), []

  def act(rows):
    received.append(rows)
    return np.zeros(len(rows.index), np.int32)

  learner.server.bind_stream(
    protocol.ACT,
    lambda hello: serving.FunctionSession(act, {"first_seed": 0}),
    *protocol.act_layouts(envs.spec(envs.Config()), 2),
    max_streams=2,
  )
  # The path of `tmp_path` may be too long for a socket.
  with learner, tempfile.TemporaryDirectory(dir="/tmp") as folder:
    words = (learner.server.address, "--num-actors", 2)
    machine = joiners.start(*words, TMPDIR=folder)
    running.wait_until(lambda: len(received) > 3)
    children = psutil.Process(machine.pid).children()
    assert len(children) == 2 and os.listdir(folder)
    if status is None:
      learner.server.stop()
    else:
      machine.send_signal(status)
    joiners.ended(code)
    assert not any(child.is_running() for child in children)
    assert not os.listdir(folder)


@pytest.fixture
def replaced(monkeypatch):
  """Lets programs that would replace this process run in it."""

  def execute(path, program):
    assert program[:3] == [path, "-m", "seedx.join"]
    raise SystemExit(join.main(program[3:]))

  monkeypatch.setattr(os, "execv", execute)


def test_an_experiment_with_a_role_gives_up_too(tmp_path, replaced):
  words = ("--role", "actor", "--address", f"unix:{tmp_path}/nobody")
  with pytest.raises(SystemExit, match="3"):
    programs.main(seed_vtrace, [*words, "--give-up-seconds", "0.5"])


@pytest.mark.parametrize(
  ("experiment", "words", "message"),
  [
    (impala, ("--td-lambda", "0.5"), "td_lambda 1.0, found 0.5"),
    (seed_ppo, (), "the learner's experiment impala, found seed_ppo"),
  ],
)
def test_an_actors_experiment_and_options_must_equal_the_learners(
  tmp_path, capfd, replaced, experiment, words, message
):
  options = {"agent": "vtrace", "td_lambda": 1.0}
  with Learner(tmp_path, ROLES[:1], "impala", **options) as learner:
    role = ("--role", "actor", "--address", learner.server.address)
    with pytest.raises(SystemExit, match="2"):
      programs.main(experiment, [*role, *words])
  assert message in capfd.readouterr().err


def test_a_run_of_a_script_is_joined_by_the_script_only(tmp_path, capfd):
  needs_jax = dataclasses.replace(ROLES[0], needs_jax=True)
  with Learner(tmp_path, [needs_jax], "my_network:EXPERIMENT") as learner:
    assert join.main([learner.server.address]) == 2
  assert "my_network.py --role actor --address" in capfd.readouterr().err


_SCRIPT = '''
"""A script with a torso of its own, which no JSON can carry."""
import flax.linen as nn
from seedx import app
from seedx.agents import vtrace
from seedx.pipelines import impala

class Torso(nn.Module):
  @nn.compact
  def __call__(self, observation):
    return nn.tanh(nn.Dense(8)(observation))

EXPERIMENT = app.Experiment(impala.Config(agent=vtrace.Config(torso=Torso())))
if __name__ == "__main__":
  raise SystemExit(app.main(EXPERIMENT))
'''


@pytest.mark.slow
def test_actors_of_a_script_run_with_its_objects(tmp_path, joiners):
  """An actor uses the learner's options where it sets none itself."""
  script = tmp_path / "own_script.py"
  script.write_text(_SCRIPT)

  def start(role, *words):
    words = ("--role", role, "--address", f"unix:{tmp_path}/learner", *words)
    return joiners.start(*words, program=[script])

  fits = start("actor")
  other = start("actor", "--env", "CartPole-v0")
  words = ["--total-steps", 500, "--run-dir", tmp_path / "run"]
  learner = start("learner", *FEW, *SHORT, "--env", "Acrobot-v1", *words)
  errors = {}
  for program, status in ((learner, 0), (fits, 0), (other, 2)):
    errors[program] = program.communicate(timeout=600)[1]
    assert program.returncode == status, errors
  assert 'env "Acrobot-v1", found "CartPole-v0"' in errors[other]
  assert 'env "Acrobot-v1", found "CartPole-v0"' in errors[learner]


# Python imports this module when it starts. It writes the names of the modules
# that the program looks for.
_CUSTOMIZED = """
import sys

class Finder:
  def find_spec(name, path=None, target=None):
    with open({path!r}, "a") as file:
      print(name, file=file)

sys.meta_path.insert(0, Finder)
"""
# The maximum number of seedx's modules and packages in a thin actor.
_MAX_MODULES = 35


def test_a_thin_actor_loads_little_of_seedx_and_no_jax(tmp_path, joiners):
  """A fake JAX leaves a file if anything, such as EnvPool, imports it."""
  imported, names = tmp_path / "imported", tmp_path / "names"
  (tmp_path / "sitecustomize.py").write_text(
    _CUSTOMIZED.format(path=str(names))
  )
  (tmp_path / "jax").mkdir()
  (tmp_path / "jax" / "__init__.py").write_text(
    f"open({str(imported)!r}, 'w').close()\nraise ImportError('no JAX')"
  )
  options = {"envs_per_actor": 4, "actor_batch_size": 2, "num_actors": 1}
  learner, messages = Learner(tmp_path, ROLES[:1], "impala", **options), []

  def act(rows):
    messages.append(rows)
    return np.zeros(len(rows.index), np.int32)

  learner.server.bind_stream(
    protocol.ACT,
    lambda hello: serving.FunctionSession(act, {"first_seed": 0}),
    *protocol.act_layouts(envs.spec(envs.Config()), 2),
  )
  path = os.pathsep.join([str(tmp_path), str(programs.ROOT)])
  with learner:
    joiners.start(learner.server.address, cwd=tmp_path, PYTHONPATH=path)
    running.wait_until(lambda: len(messages) > 3)
    learner.server.stop()
    joiners.ended()
  assert not imported.exists()
  loaded = {*names.read_text().split()}
  modules = [name for name in loaded if name.partition(".")[0] == "seedx"]
  assert {"seedx.join", "seedx.acting.thin_actor"} < {*modules}
  assert len(modules) <= _MAX_MODULES, modules
  assert "envpool.classic_control" in loaded
  assert not {"matplotlib", "envpool.jumanji"} & loaded


def test_a_malformed_address_is_refused_at_once(capfd):
  with pytest.raises(SystemExit, match="2"):
    join.main(["localhost"])
  error = capfd.readouterr().err
  assert error.startswith("error: ") and error.count("\n") == 1
  assert "expected host:port" in error
  for role in ([], ["--role", "actor"]):
    words = [*role, "--address", "localhost"]
    assert "expected host:port" in programs.refused(seed_vtrace, words, capfd)


@pytest.mark.parametrize("option", ["--options", "--env-options"])
def test_options_that_are_no_json_object_are_refused(option, capfd):
  with pytest.raises(SystemExit, match="2"):
    join.main(["localhost:1", option, "[]"])
  error = capfd.readouterr().err
  assert f"{option} as KEY=VALUE,KEY=VALUE or as a JSON object" in error
  assert error.count("\n") == 1
