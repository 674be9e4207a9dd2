"""Tests that load could fail, beside programs that keep the cores busy.

  python -m tests.load [--loops COUNT]

runs the files that have processes, sockets, threads or timeouts, one after
another, says how each has ended, and exits with status 1 if one has failed.
"""

import argparse
import subprocess
import sys
import time

FRAGILE = """
  app batcher benchmark checkpoint command_line compare elsewhere evaluate
  exchange experience full_disk hostile impala join killed launch learner
  memory metrics own_envs parameter_server pipe pipelines process reconnect
  replays resume security seed sessions signals sweep sync thin_actor
  unroll_server wire
"""
_LOOP = "while True: pass"


def busy(count):
  """Starts programs that each keep a core busy for as long as this one lives.

  Each ends when its standard input does.
  """
  program = (
    "import os, sys, threading\n"
    "def wait():\n  sys.stdin.read()\n  os._exit(0)\n"
    f"threading.Thread(target=wait).start()\n{_LOOP}"
  )
  words = [sys.executable, "-c", program]
  return [subprocess.Popen(words, stdin=subprocess.PIPE) for _ in range(count)]


def main():
  """Runs the tests; returns the exit status."""
  parser = argparse.ArgumentParser("tests.load", description=__doc__)
  parser.add_argument("--loops", type=int, default=4, help="busy programs")
  asked = parser.parse_args()
  files = [f"tests/{name}_test.py" for name in FRAGILE.split()]
  failed, loops = False, busy(asked.loops)
  try:
    for which in files:
      began = time.monotonic()
      words = [sys.executable, "-m", "pytest", "-n", "0", which]
      done = subprocess.run(words, stdout=subprocess.PIPE)
      seconds = time.monotonic() - began
      result = "failed" if done.returncode else "passed"
      print(f"{which}: {result} in {seconds:.0f} s", flush=True)
      if done.returncode:
        failed = True
        print(done.stdout.decode(errors="replace"), flush=True)
  finally:
    for loop in loops:
      loop.kill()
      loop.communicate()
  return int(failed)


if __name__ == "__main__":
  sys.exit(main())
