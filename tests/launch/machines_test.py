"""Tests of runs over TLS: strangers at the port, and two machines."""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from experiments import es, gorila_dqn, pool_vtrace, qt_opt, seed_vtrace
from seedx import join, metrics, wire
from seedx.app import certificates
from tests import programs, running
from tests.chaos import peers

SMALL = "--total-steps 4000 --hidden-sizes 8 --unroll-length 5"
# The options of each program, and the roles that join it.
RUNS = {
  seed_vtrace: (
    f"{SMALL} --batch-size 4 --num-actors 1 --envs-per-actor 4",
    ["actor"],
  ),
  gorila_dqn: (
    f"{SMALL} --num-workers 1 --envs-per-worker 4 --replay-min-steps 100"
    " --replay-batch-size 16 --num-servers 1",
    ["server", "worker"],
  ),
  pool_vtrace: (
    f"{SMALL} --batch-size 4 --num-actors 1 --envs-per-actor 4"
    " --num-inference 1",
    ["inference", "actor"],
  ),
  qt_opt: (
    "--total-steps 4000 --hidden-sizes 8 --envs-per-actor 4 --batch-size 4"
    " --replay-min-steps 100 --replay-ratio 4 --num-labellers 1",
    ["actor", "labeller"],
  ),
  es: (
    "--total-steps 100000 --hidden-sizes 8 --num-workers 1"
    " --pairs-per-worker 2",
    ["worker"],
  ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tls") / "files"
  assert certificates.main([str(folder), "--hosts", "10.77.0.1"]) == 0
  return folder


def free_address():
  return f"127.0.0.1:{programs.free_port()}"


def words_of(files, *names):
  options = {
    "tls_ca": files / "ca.pem",
    "tls_certificate": files / "certificate.pem",
    "tls_key": files / "key.pem",
    "token_file": files / "token",
  }
  words = [("--" + name.replace("_", "-"), options[name]) for name in names]
  return [str(word) for pair in words for word in pair]


SERVER_OPTIONS = "tls_ca", "tls_certificate", "tls_key", "token_file"


def listens(address):
  host, _, port = address.rpartition(":")
  with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
    return True
  return False


def attack(address, methods, files, tmp_path):
  """Calls all methods as three kinds of strangers; returns the errors."""
  guess = tmp_path / "guess"
  guess.write_text("a-guess-of-the-token")
  no_token = wire.Security(
    tls_ca=str(files / "ca.pem"),
    tls_certificate=str(files / "certificate.pem"),
    tls_key=str(files / "key.pem"),
  )
  wrong = dataclasses.replace(no_token, token_file=str(guess))
  strangers = [wire.Security(), no_token, wrong]
  errors = set()
  for security in strangers:
    with wire.Client(address, security) as client:
      for method in methods:
        with pytest.raises(wire.WireError) as caught:
          client.stream(
            method.name, [], method.inputs, wire.NOTHING, method.hello
          )
        errors.add((caught.value.code, caught.value.message))
  return errors


@pytest.mark.parametrize(
  "program",
  [
    pytest.param(seed_vtrace, marks=pytest.mark.slow),
    pytest.param(gorila_dqn, marks=pytest.mark.long),
    pytest.param(pool_vtrace, marks=pytest.mark.slow),
    pytest.param(qt_opt, marks=pytest.mark.slow),
    pytest.param(es, marks=pytest.mark.slow),
  ],
)
def test_strangers_read_nothing_and_change_nothing(program, files, tmp_path):
  options, roles = RUNS[program]
  address, token = free_address(), (files / "token").read_text().strip()
  secured = words_of(files, *SERVER_OPTIONS)
  run_dir = tmp_path / "run"
  started = []
  with contextlib.ExitStack() as opened:

    def start(module, *words):
      log = opened.enter_context((tmp_path / f"{len(started)}").open("w+"))
      process = programs.start(module, *words, stdout=log, stderr=log)
      opened.callback(process.kill)
      started.append((process, log))
      return process

    words = ["--role", "learner", "--address", address, *options.split()]
    start(program, *words, *secured, "--run-dir", str(run_dir))
    running.wait_until(lambda: listens(address))
    config = program.EXPERIMENT.config
    errors = attack(address, peers.methods(config), files, tmp_path)
    if "inference" in roles:
      listening = free_address()
      words = [address, "--role", "inference", "--listen", listening]
      start(join, *words, *secured)
      running.wait_until(lambda: listens(listening))
      errors |= attack(listening, peers.acting(config), files, tmp_path)
    if "server" in roles:
      server_address = free_address()
      start(
        join, address, "--role", "server", "--listen", server_address, *secured
      )
      running.wait_until(lambda: listens(server_address))
      errors |= attack(server_address, peers.shards(config)[0], files, tmp_path)
    for role in roles:
      if role not in ("server", "inference"):
        start(join, address, "--role", role, *secured)
    errors |= attack(address, peers.methods(config), files, tmp_path)
    for process, log in started:
      assert process.wait(600) == 0, pathlib.Path(log.name).read_text()
    for _, log in started:
      text = pathlib.Path(log.name).read_text()
      assert token not in text and "Traceback" not in text
      assert "handshake" not in text.lower()
  # For strangers without TLS, the server is UNAVAILABLE.
  assert wire.StatusCode.UNAVAILABLE in {code for code, _ in errors}
  assert {x for x in errors if x[0] is not wire.StatusCode.UNAVAILABLE} == {
    (wire.StatusCode.UNAUTHENTICATED, "expected the run's token")
  }
  last = metrics.read_lines(run_dir / "metrics.jsonl")[-1]
  assert last["env_steps"] >= 4000 and last["learner_steps"] > 0
  for path in run_dir.rglob("*"):
    if path.is_file():
      assert token.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_a_learner_that_listens_on_all_addresses_is_reached_by_its_actors(
  files, tmp_path
):
  options, _ = RUNS[seed_vtrace]
  words = [
    "--address",
    f"0.0.0.0:{programs.free_port()}",
    *words_of(files, *SERVER_OPTIONS),
  ]
  words += [*options.split(), "--run-dir", str(tmp_path)]
  assert programs.main(seed_vtrace, words) == 0
  recorded = json.loads((tmp_path / "config.json").read_text())["options"]
  assert (
    not {*SERVER_OPTIONS, "insecure"} & {*recorded} and "address" in recorded
  )


# Two machines


def has_namespaces():
  done = shutil.which("ip") and subprocess.run(
    ["unshare", "--net", "true"], capture_output=True, check=False
  )
  return bool(done) and done.returncode == 0


def ip(*words):
  subprocess.run(["ip", *words], check=True)


@pytest.fixture
def machines():
  """Makes two linked network namespaces, 10.77.0.1 and 10.77.0.2."""
  names = ["seedx-a", "seedx-b"]
  with contextlib.ExitStack() as opened:
    for name in names:
      ip("netns", "add", name)
      opened.callback(ip, "netns", "del", name)
    ends = ["veth0", "netns", names[0], "type", "veth"]
    ip("link", "add", *ends, "peer", "name", "veth0", "netns", names[1])
    for k, name in enumerate(names):
      ip("-n", name, "addr", "add", f"10.77.0.{k + 1}/24", "dev", "veth0")
      ip("-n", name, "link", "set", "veth0", "up")
      ip("-n", name, "link", "set", "lo", "up")
    yield [["ip", "netns", "exec", name] for name in names]


@pytest.mark.long
@pytest.mark.skipif(
  not has_namespaces(), reason="needs the right to make network namespaces"
)
def test_training_continues_after_the_link_was_cut(machines, files, tmp_path):
  here, there = machines
  run_dir, address = tmp_path / "run", "10.77.0.1:8470"

  def start(machine, *words):
    command = [*machine, sys.executable, "-m", *words]
    return subprocess.Popen(command, cwd=programs.ROOT)

  words = f"--role learner --address {address} --num-actors 2".split()
  words += ["--total-steps", "1000000000", "--run-dir", str(run_dir)]
  words += words_of(files, "tls_certificate", "tls_key", "token_file")
  learner = start(here, "experiments.seed_vtrace", *words)
  secured = words_of(files, "tls_ca", "token_file")
  actors = [
    start(there, "seedx.join", address, *secured, "--give-up-seconds", "60")
    for _ in range(2)
  ]
  try:
    running.wait_until(lambda: programs.env_steps(run_dir) > 5_000)
    ip("-n", "seedx-b", "link", "set", "veth0", "down")
    time.sleep(3)
    before = programs.env_steps(run_dir)
    time.sleep(27)
    assert programs.env_steps(run_dir) == before
    ip("-n", "seedx-b", "link", "set", "veth0", "up")
    running.wait_until(lambda: programs.env_steps(run_dir) > before + 20_000)
    learner.send_signal(signal.SIGINT)
    assert learner.wait(300) == 128 + signal.SIGINT
    assert [actor.wait(300) for actor in actors] == [0, 0]
  finally:
    for process in (learner, *actors):
      process.kill()
