"""Environments that are clients of a simulator, each with a port of its own.

  seedx train examples/ports.py --run-dir runs/ports

A factory's argument `seed` differs for each environment: environment k of a run
has the seed plus k. So `seed` also numbers what each environment needs for
itself, such as a port, a display or a directory. Here the factory starts the
simulator, a program that answers actions on its port.
"""

import socket
import subprocess
import sys

import gymnasium
import numpy as np

from seedx import app, envs
from seedx.agents import ppo
from seedx.pipelines import sync

# Reads an action as a byte, and answers with the new place as a byte.
SIMULATOR = """
import socket, sys
place = 0
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
  print(flush=True)
  connection, _ = server.accept()
  while action := connection.recv(1):
    place = 0 if action[0] == 2 else min(max(place + 2 * action[0] - 1, 0), 9)
    connection.send(bytes([place]))
"""


class Walk(gymnasium.Env):
  observation_space = gymnasium.spaces.Discrete(10)
  action_space = gymnasium.spaces.Discrete(2)

  def __init__(self, port):
    words = [sys.executable, "-c", SIMULATOR, str(port)]
    self._simulator = subprocess.Popen(words, stdout=subprocess.PIPE)
    self._simulator.stdout.readline()  # Until it listens.
    self._socket = socket.create_connection(("127.0.0.1", port))

  def _ask(self, action):
    self._socket.send(bytes([action]))
    return np.int64(self._socket.recv(1)[0])

  def reset(self, *, seed=None, options=None):
    return self._ask(2), {}

  def step(self, action):
    place = self._ask(int(action))
    return place, float(place == 9), bool(place == 9), False, {}

  def close(self):
    self._socket.close()
    self._simulator.wait()


def make(seed, first_port=24000):
  return gymnasium.wrappers.TimeLimit(Walk(first_port + seed), 50)


WALKS = envs.Config("ports:make")
EXPERIMENT = app.Experiment(
  sync.Config(env=WALKS, agent=ppo.Config(), num_envs=4, total_steps=20_000)
)
