"""Worker processes of tests, which are forked, and steps of their rows."""

import numpy as np
import pytest
import tree

from seedx import envs
from seedx.envs.processes import child
from tests import forks


def config_of(factory, options=None, **fields):
  return envs.Config(f"tests.own_envs:{factory}", options or {}, **fields)


@pytest.fixture(scope="module")
def fork_server():
  """A server that forks processes, which is faster than new interpreters."""
  server = forks.Server()
  yield server
  server.close()


@pytest.fixture(autouse=True)
def workers(fork_server, monkeypatch):
  """Forks the worker processes of tests."""
  monkeypatch.setattr(child, "subprocess", fork_server)


@pytest.fixture
def start():
  """Makes environments, and closes them after the test."""
  made = []

  def make(factory, num_envs, options=None, *, fields=None, **kwargs):
    config = config_of(factory, options, **(fields or {}))
    made.append(envs.make(config, num_envs, **kwargs))
    made[-1].reset()
    return made[-1]

  yield make
  for environment in made:
    environment.close()


def run(environment, actions):
  """Steps environments with actions `[T, B]`; returns the rows `[T + 1, B]`."""
  rows = [environment.recv()]
  for action in actions:
    environment.send(rows[-1].index, action)
    rows.append(environment.recv())
  return tree.map_structure(lambda *leaves: np.stack(leaves), *rows)
