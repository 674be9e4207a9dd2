"""Runs timing-dependent tests while other programs keep the cores busy.

  python -m tests.load [--loops COUNT] [--all]

By default, the program runs the fast tests of files with processes, sockets,
threads or timeouts. The exit status is that of pytest.
"""

import argparse
import subprocess
import sys

FRAGILE = """
  acting/batcher acting/sessions acting/thin_actor acting/unroll_server
  agents/memory app/app app/cli/command_line app/cluster_learner app/evaluate
  app/full_disk app/signals app/studies/compare app/studies/sweep
  benchmarks/speed checkpoint envs/own_envs launch/join launch/launch
  learning/experience learning/learner metrics pipelines/impala
  pipelines/killed pipelines/parameter_server pipelines/pipelines
  pipelines/resume pipelines/seed pipelines/sync runtime/process
  wire/authentication wire/exchange wire/hostile wire/reconnect wire/unix_pipe
  wire/wire
"""
_LOOP = "while True: pass"


def busy(count):
  """Starts programs that each keep a core busy until their stdin closes."""
  program = (
    "import os, sys, threading\n"
    "def wait():\n  sys.stdin.read()\n  os._exit(0)\n"
    f"threading.Thread(target=wait).start()\n{_LOOP}"
  )
  words = [sys.executable, "-c", program]
  return [subprocess.Popen(words, stdin=subprocess.PIPE) for _ in range(count)]


def main():
  parser = argparse.ArgumentParser("tests.load", description=__doc__)
  parser.add_argument(
    "--loops", type=int, default=4, help="number of busy programs"
  )
  parser.add_argument("--all", action="store_true", help="run all fast tests")
  options = parser.parse_args()
  files = [f"tests/{name}_test.py" for name in FRAGILE.split()]
  loops = busy(options.loops)
  try:
    command = [sys.executable, "-m", "pytest", *(() if options.all else files)]
    return subprocess.run(command).returncode
  finally:
    for loop in loops:
      loop.kill()
      loop.communicate()


if __name__ == "__main__":
  sys.exit(main())
