"""RLax, which is imported when a loss is first computed.

RLax imports TensorFlow Probability, which takes half a second and 97 MB.
Processes that compute no loss, such as parameter servers, never load it.
"""

import importlib
from typing import Any

import jax


def rlax() -> Any:
  """Returns the module `rlax`, which the first call imports."""
  # A loss is first computed while JAX traces it; an import must not be traced.
  with jax.ensure_compile_time_eval():
    return importlib.import_module("rlax")
