"""Forks of one interpreter, in which the environments of tests run.

A new interpreter needs a third of a second to import a worker's modules. A fork
has imported these modules already, and is otherwise a process like any other.
"""

import fcntl
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading

_FIRST_FREE = 100  # A file descriptor above those that programs are given.
_MAX_BYTES = 1 << 16


class Server:
  """A process that forks; it replaces `subprocess` in `seedx.envs`."""

  DEVNULL = subprocess.DEVNULL
  TimeoutExpired = subprocess.TimeoutExpired

  def __init__(self):
    """Starts the process."""
    self._lock = threading.Lock()
    self._socket, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with other:
      self._process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(other.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[other.fileno()],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
      )

  def close(self):
    """Ends the process, after all of its forks have ended."""
    self._socket.close()
    assert self._process.wait() == 0

  def ask(self, *question, files=()):
    """Sends a question to the process; returns its answer, a number."""
    with self._lock:
      socket.send_fds(self._socket, [pickle.dumps(question)], files)
      return pickle.loads(self._socket.recv(_MAX_BYTES))

  def Popen(self, command, *, stdin, pass_fds, env):
    """Runs a command `[python, "-P", "-c", program]` in a fork."""
    assert command[1:3] == ["-P", "-c"] and stdin == self.DEVNULL
    question = "fork", command[3], pass_fds, env, os.getcwd()
    return _Fork(self, self.ask(*question, files=pass_fds))


class _Fork:
  """A fork, with the methods of `subprocess.Popen` that seedx calls."""

  def __init__(self, server, pid):
    self.pid, self.returncode, self._server = pid, None, server
    self._handle = os.pidfd_open(pid)

  def poll(self):
    try:
      return self.wait(0)
    except subprocess.TimeoutExpired:
      return None

  def wait(self, timeout=None):
    if self.returncode is None:
      poll = select.poll()
      poll.register(self._handle, select.POLLIN)
      seconds = None if timeout in (None, float("inf")) else timeout
      if not poll.poll(None if seconds is None else 1000 * seconds):
        raise subprocess.TimeoutExpired("a fork", timeout)
      self.returncode = self._server.ask("wait", self.pid)
      os.close(self._handle)
    return self.returncode

  def kill(self):
    if self.poll() is None:
      signal.pidfd_send_signal(self._handle, signal.SIGKILL)


def _serve(connection):
  while True:
    message, files, *_ = socket.recv_fds(connection, _MAX_BYTES, 8)
    if not message:
      return
    what, *rest = pickle.loads(message)
    if what == "wait":
      answer = os.waitstatus_to_exitcode(os.waitpid(rest[0], 0)[1])
    else:
      answer = os.fork()
      if not answer:
        connection.close()
        _run(files, *rest)
    for file in files:
      os.close(file)
    connection.send(pickle.dumps(answer))


def _run(files, program, numbers, environment, folder):
  """Runs a program, with its open files at the expected descriptors."""
  status = 1
  try:
    high = [fcntl.fcntl(x, fcntl.F_DUPFD, _FIRST_FREE) for x in files]
    for file in files:
      os.close(file)
    for file, number in zip(high, numbers, strict=True):
      os.dup2(file, number)
      os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    exec(program, {"__name__": "__main__"})
    status = 0
  finally:
    os._exit(status)


if __name__ == "__main__":
  for module in (
    "gymnasium.envs.classic_control",
    "seedx.envs.processes.worker",
    "seedx.envs.processes.single_gymnasium",
    "tests.own_envs",
  ):
    importlib.import_module(module)
  gc.freeze()
  _serve(socket.socket(fileno=int(sys.argv[1])))
