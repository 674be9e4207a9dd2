"""Tests of importing EnvPool without the code of unused families."""

import json
import os
import subprocess
import sys

import pytest

from tests import programs


def run(script, *folders):
  """Runs a script in a new process; returns the JSON that it prints."""
  path = os.pathsep.join([*map(str, folders), str(programs.ROOT)])
  done = subprocess.run(
    [sys.executable, "-c", script],
    env=os.environ | {"PYTHONPATH": path},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


_REGISTRY = """
import json, sys
sys.modules["jax"] = None
import envpool
registry = envpool.registration.registry
print(json.dumps([registry.specs, registry.envpools]))
"""
_ONE_FAMILY = """
import json, sys
sys.modules["jax"] = None
from seedx import envs
envs.make(envs.Config("CartPole-v1"), 1)
first = [x for x in sys.modules if x.startswith(("envpool.", "matplotlib"))]
import envpool, envpool.jumanji.registration
registry = envpool.registration.registry
envs.make(envs.Config("Snake-v1"), 1)
second = [*sys.modules]
print(json.dumps([[registry.specs, registry.envpools], first, second]))
"""


def test_all_environments_are_known_and_one_family_is_loaded():
  registry, first, second = run(_ONE_FAMILY)
  assert registry == run(_REGISTRY)
  assert "envpool.classic_control.classic_control_envpool" in first
  other = {"matplotlib", "envpool.atari", "envpool.jumanji", "envpool.highway"}
  assert not other & {*first}
  assert "envpool.jumanji" in second


_FAMILY = """
try:
  import envpool.cards.registration
except ImportError:
  pass
"""


@pytest.mark.parametrize(
  ("entry", "is_loaded"),
  [
    ('"""Entry."""\nimport envpool.cards.registration', False),
    (_FAMILY, True),
    ("import envpool.cards.registration, envpool.cards.other", True),
  ],
)
def test_only_an_entry_of_plain_registrations_is_replaced(
  entry, is_loaded, tmp_path
):
  """Other versions of EnvPool could have other code in `envpool.entry`."""
  cards = tmp_path / "envpool" / "cards"
  cards.mkdir(parents=True)
  (cards.parent / "__init__.py").write_text("NAMES = []\nimport envpool.entry")
  (cards.parent / "entry.py").write_text(entry)
  (cards / "__init__.py").touch()
  (cards / "other.py").touch()
  (cards / "registration.py").write_text(
    "import envpool\nenvpool.NAMES.append('Bridge')"
  )
  names, loaded = run(
    """
import json, sys
from seedx.envs import families
names = families.envpool().NAMES
loaded = [*sys.modules]
import envpool.entry, envpool.cards.registration
assert families.envpool() is envpool
print(json.dumps([names, loaded]))
""",
    tmp_path,
  )
  assert names == ["Bridge"]
  assert ("envpool.cards" in loaded) == is_loaded
