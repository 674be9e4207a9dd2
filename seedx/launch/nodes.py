"""A pipeline's topology as data."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Node:
  """A role that runs somewhere, and how often.

  Attributes:
    role: its name.
    run: `(config, stop)`, a function of a module that is also a program: it
      takes the config as JSON, and ends when its standard input does.
    config: a dataclass that fits into JSON.
    count: how many of it run.
  """

  role: str
  run: Callable[[Any, threading.Event], None]
  config: Any
  count: int = 1
