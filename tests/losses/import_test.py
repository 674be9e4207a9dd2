"""The losses can be used without the rest of the framework."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_losses_import_only_what_the_page_names():
  """docs/own_code.md names JAX, chex and dm_env; RLax comes with a call."""
  script = """
import sys
import chex, dm_env, jax

before = set(sys.modules)
from seedx import losses

added = {name.partition(".")[0] for name in set(sys.modules) - before}
added -= {name.partition(".")[0] for name in before} | sys.stdlib_module_names
assert added == {"seedx"}, added
assert losses.vtrace
"""
  subprocess.run(
    [sys.executable, "-c", script],
    check=True,
    cwd=ROOT,
  )


def test_libraries_are_not_traced_when_they_are_imported(tmp_path):
  """A library imported in a trace would keep tracers instead of constants."""
  for module, function in (
    ("rlax", "n_step_bootstrapped_returns"),
    ("distrax", "MultivariateNormalDiag"),
  ):
    (tmp_path / f"{module}.py").write_text(
      "import jax.numpy as jnp\n"
      "ONE = jnp.zeros(()) + 1\n"
      f"def {function}(*args): return ONE"
    )
  script = """
import sys
import jax
import jax.numpy as jnp
from seedx import distributions, losses

@jax.jit
def compute(values, step_type):
  returns = losses.n_step_returns(values, step_type, values, values, n=1)
  return returns, distributions.BoundedGaussian((0.0,), (1.0,))(values)

assert not {"rlax", "distrax"} & set(sys.modules)
assert compute(jnp.ones(2), jnp.ones(2, jnp.int32)) == (1, 1)
import rlax, distrax
assert float(rlax.ONE + distrax.ONE) == 2
"""
  path = os.pathsep.join([str(tmp_path), str(ROOT)])
  subprocess.run(
    [sys.executable, "-c", script],
    check=True,
    env=os.environ | {"PYTHONPATH": path},
  )
