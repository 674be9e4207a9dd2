"""Random keys whose bits are computed by one kernel."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from seedx.on_cpu import random_keys

KEY = jax.random.key(7)


def data(rng_keys):
  return jax.random.key_data(rng_keys)


@jax.jit
def draws(key):
  return [
    jax.random.bits(key, (5, 3)),
    jax.random.bits(key, (7,), jnp.uint8),
    jax.random.bits(key, (7,), jnp.uint16),
    jax.random.bits(key, ()),
    jax.random.normal(key, (9,)),
    jax.random.categorical(key, jnp.zeros((4, 5))),
    jax.random.randint(key, (9,), 0, 7),
    jax.random.permutation(key, 50),
    data(jax.random.split(key, (2, 3))),
    data(jax.random.fold_in(key, 2**31)),
    data(jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(3))),
    data(jax.vmap(jax.random.split)(jax.random.split(key, 3))),
  ]


def test_all_numbers_equal_those_of_jaxs_own_key():
  unrolled = draws(random_keys.unrolled(KEY))
  chex.assert_trees_all_equal(unrolled, draws(KEY))


def test_converting_a_key_twice_keeps_its_data():
  once = random_keys.unrolled(KEY)
  np.testing.assert_array_equal(data(once), data(KEY))
  np.testing.assert_array_equal(data(random_keys.unrolled(once)), data(KEY))


def test_a_key_of_another_kind_is_returned_unchanged():
  key = jax.random.key(7, impl="rbg")
  assert random_keys.unrolled(key) is key


def test_numbers_of_64_bits_equal_those_of_jaxs_own_key():
  with jax.enable_x64(True):
    bits = [
      jax.random.bits(key, (5,), jnp.uint64)
      for key in (KEY, random_keys.unrolled(KEY))
    ]
  np.testing.assert_array_equal(*bits)
  assert bits[0].dtype == np.uint64


def test_a_program_computes_bits_without_a_loop():
  def text(key):
    draw = jax.jit(lambda key: jax.random.gumbel(key, (128, 2)))
    return draw.lower(key).compile().as_text()

  assert " while(" in text(KEY)
  assert " while(" not in text(random_keys.unrolled(KEY))
