"""The first lines of a run: its devices, presets and network."""

import contextlib
import dataclasses
import math
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax

from seedx import envs, networks, trees, types
from seedx.agents import base, evolution
from seedx.app import devices, scales
from seedx.app.runs import warm_start
from seedx.networks import critic, heads, lstm, torsos
from seedx.runtime import process

# Instead of these modules, the modules inside them are described.
_CONTAINERS = (networks.Network, torsos.Torso)
# Parameters of a dense layer that deserves a warning.
_MAX_DENSE = 4_000_000
# An array with two longer sides may be an image.
_MIN_SIDE = 7
# The settings that replace Gymnasium's wrappers.
_INSTEAD = {
  "NormalizeObservation": "normalize_observations",
  "NormalizeReward": "normalize_rewards",
}


def introduce(
  name: str,
  config: process.Config,
  origin: warm_start.Origin | None,
  presets: Sequence[str],
  run_dir: pathlib.Path,
) -> None:
  """Prints a run's experiment, devices, directory, presets and network."""
  parts = [f"{name} on {config.env.env}", devices.described()]
  # Not wrapped, so that the path can be copied.
  lines = [" | ".join([*parts, str(run_dir)]), *presets]
  lines += filter(None, [devices.unused()])
  with contextlib.suppress(OSError):  # stderr may be on a full disk.
    print(*lines, sep="\n", file=sys.stderr, flush=True)
  # A preset's line has the scale already.
  lines = []
  if not any(" reward_scale " in line for line in presets):
    lines += filter(None, [scales.scaled(config.agent)])
  lines += pictures(config.agent, config.env)
  lines += doubts(config.agent, config.env)
  lines.append(network(config.agent, config.env))
  lines += [] if origin is None else [origin.words]
  with contextlib.suppress(OSError):
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def network(agent: base.Config, env: envs.Config) -> str:
  """Returns a network's layers and its number of parameters.

  A second line names a very large dense layer, such as that of a large image.
  Nothing is compiled or computed: the parameters are only traced.

  Raises:
    types.ConfigError: the agent cannot be made for the environment.
  """
  init = agent.make(envs.spec(env)).init
  layers = _Layers()
  with nn.intercept_methods(layers.intercept):
    # A new lambda, since JAX does not trace the same function again.
    state = jax.eval_shape(lambda key: init(key), jax.random.key(0))
  sizes = [math.prod(x.shape) for x in jax.tree.leaves(state.params)]
  words = [", ".join(layers.words)] if layers.words else []
  line = ": ".join(["network", *words, f"{sum(sizes):,} parameters"])
  kernels = [x.shape for x in jax.tree.leaves(state.params) if x.ndim == 2]
  largest = max(kernels, key=math.prod, default=(0, 0))
  if math.prod(largest) <= _MAX_DENSE:
    return line
  return (
    f"{line}\na dense layer has {math.prod(largest):,} parameters, because it"
    f" has {largest[0]:,} inputs; let the environment or an"
    " observation_transform return smaller observations"
  )


def pictures(agent: base.Config, env: envs.Config) -> list[str]:
  """Returns a line for each array that may, or may not, be meant as an image.

  Images of bytes need no line. The line contains what was chosen, and how to
  choose otherwise. A torso of the user's own and a board have no lines.
  """
  spec = envs.spec(env)
  if getattr(agent, "torso", None) is not None or spec.game is not None:
    return []
  lines = []
  for name, leaf in trees.named_leaves(spec.observation):
    sides = [size for size in leaf.shape if size >= _MIN_SIDE]
    is_mask = name == spec.action_mask
    words = f"observation {name}".rstrip() + f", {leaf.dtype} {[*leaf.shape]}: "
    if isinstance(leaf, types.ImageArray):
      lines.append(
        f"{words}the image network, for pixels from {leaf.minimum} to"
        f" {leaf.maximum}; for the MLP, let an observation_transform flatten it"
      )
    elif len(sides) > 1 and not is_mask and not types.is_image(leaf):
      lines.append(
        f"{words}flattened for the MLP; for the image network, let the"
        " environment or an observation_transform return bytes, uint8 [height,"
        " width, channels]"
      )
  return lines


def doubts(agent: Any, env: envs.Config) -> list[str]:
  """Returns a line for each setting that hardly fits the environment."""
  spec, lines = envs.spec(env), []
  for name in spec.normalizers:
    remedy = (
      _INSTEAD[name] if hasattr(agent, _INSTEAD[name]) else "reward_scale"
    )
    lines.append(
      f"{name} in the environment has statistics of its own, with which each"
      f" process and each evaluation begins anew; use"
      f" --{remedy.replace('_', '-')} instead"
    )
  if spec.game is not None and getattr(agent, "search", "") == "puct":
    moves = int(spec.game.legal(spec.game.start()).sum())
    if agent.num_simulations < moves:
      lines.append(
        f"search puct: {agent.num_simulations} simulations cannot visit the"
        f" {moves} moves of the first position; use --num-simulations"
        f" {2 * moves} or --search gumbel"
      )
  size = math.prod(spec.action.shape)
  target = getattr(agent, "target_entropy", 0.0)
  if size > 1 and target <= -size:
    lines.append(
      f"target_entropy {target:g} is that of each of the {size} dimensions; for"
      f" a sum of {target:g}, use --target-entropy {target / size:.3g}"
    )
  return lines


@dataclasses.dataclass
class _Layers:
  """Descriptions of called modules; modules within these are left out.

  A module of the user's is called twice, see `agents.model`.
  """

  words: list[str] = dataclasses.field(default_factory=list)
  _seen: set[Any] = dataclasses.field(default_factory=set)
  _is_within: bool = False

  def intercept(
    self,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context: nn.module.InterceptorContext,
  ) -> Any:
    module = context.module
    is_part = context.method_name == "__call__" and not self._is_within
    if not is_part or isinstance(module, _CONTAINERS):
      return call(*args, **kwargs)
    words = _in_words(module)
    if words and (module.path, words) not in self._seen:
      self._seen.add((module.path, words))
      self.words.append(words)
    self._is_within = True
    try:
      return call(*args, **kwargs)
    finally:
      self._is_within = False


def _in_words(module: nn.Module) -> str:
  match module:
    case torsos.MLP(sizes=()):
      return ""
    case torsos.MLP():
      return " ".join(["MLP", *map(str, module.sizes), module.activation])
    case torsos.SmallCNN():
      sizes = " ".join(map(str, (*module.channels, module.size)))
      strides = f" (stride {module.stride})" if module.stride > 1 else ""
      return f"SmallCNN {sizes}{strides}"
    case torsos.NatureCNN() | torsos.ImpalaResNet():
      return f"{type(module).__name__} {module.size}"
    case lstm.LSTM():
      return f"LSTM {module.size}"
    case heads.PolicyValueHead():
      return f"policy {module.num_policy_parameters} + value 1"
    case heads.QHead():
      return _q_values(module)
    case heads.CategoricalQHead():
      return f"{_q_values(module.head)} x {len(module.atoms)} atoms"
    case evolution.ActionHead():
      return f"policy {module.outputs}"
    case critic.ActorHead():
      return f"policy {module.num_parameters}"
    case critic.Critic():
      return _critics(module)
  return type(module).__name__


def _critics(head: critic.Critic) -> str:
  number = f"{head.num_critics} critic" + "s" * (head.num_critics > 1)
  layers = [*map(str, head.sizes), head.activation] if head.sizes else []
  atoms = f" x {head.parts} atoms" if head.parts else ""
  return " ".join([number, *layers]) + atoms


def _q_values(head: heads.QHead) -> str:
  hidden = f" {head.size}" if head.size else ""
  dueling = f"dueling{hidden}, " if head.dueling else ""
  return f"{dueling}Q {head.num_actions}"
