"""Random permutations without a sort.

On CPU this saves 29% of the time of `anakin_ppo` with 512 environments and
unrolls of 128. All platforms use this code, so that they draw the same numbers.
"""

import jax
import jax.numpy as jnp

# Maximum size for which JAX sorts random numbers. For 65,536 numbers, the sort
# takes 29 ms on two CPU cores, `encipher` 1 ms.
_SORTED = 8192
_ROUNDS = 6


def random(rng_key: jax.Array, size: int) -> jax.Array:
  """Draws a permutation of 0 to `size - 1`, `[size]` uint32 or int32.

  JAX draws small permutations. For a large one, each number is enciphered with
  a Feistel network, which permutes all numbers of b bits. A result of `size` or
  more is enciphered again until it is smaller (Black and Rogaway 2002,
  https://doi.org/10.1007/3-540-45760-7_9, "cycle walking").
  """
  if size <= _SORTED:
    return jax.random.permutation(rng_key, size)
  keys = jax.random.bits(rng_key, (_ROUNDS,), jnp.uint32)
  bits = (size - 1).bit_length()

  def encipher(number: jax.Array) -> jax.Array:
    right_bits = bits // 2
    for key in keys:
      # The right part changes the left one, then they change places.
      left_bits = bits - right_bits
      left, right = number >> right_bits, number & ((1 << right_bits) - 1)
      changed = left ^ (_hash(right ^ key) & ((1 << left_bits) - 1))
      number = (right << left_bits) | changed
      right_bits = left_bits
    return number

  return jax.lax.while_loop(
    lambda numbers: jnp.any(numbers >= size),
    lambda numbers: jnp.where(numbers >= size, encipher(numbers), numbers),
    encipher(jnp.arange(size, dtype=jnp.uint32)),
  )


def _hash(x: jax.Array) -> jax.Array:
  # The finalizer of MurmurHash3 (Appleby), a bijection of uint32.
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
