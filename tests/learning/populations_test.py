"""The rules of populations, on scores and on the paper's toy problem."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import search_spaces, types
from seedx.agents import a2c
from seedx.learning import populations

UNIT = search_spaces.Range(0.0, 1.0, log=False, whole=False)
RATES = search_spaces.Range(1e-5, 1e-1, log=True, whole=False)
TRUNCATION = populations.Config()
NAN = float("nan")


@functools.partial(jax.jit, static_argnums=1)
def toy(seed, evolves, resampled):
  """Returns the best score of two members (the paper's figure 2).

  Each ascends a surrogate 1.2 - h_0 theta_0^2 - h_1 theta_1^2 of the score,
  with h = (1, 0) and h = (0, 1).
  """

  def scores(theta):
    return 1.2 - jnp.sum(theta**2, axis=1)

  def evolve(theta, h, key):
    copy_key, explore_key = jax.random.split(key)
    source = populations.exploit(TRUNCATION, copy_key, scores(theta))
    new = populations.explore(
      TRUNCATION,
      explore_key,
      {"0": h[source, 0], "1": h[source, 1]},
      {"0": UNIT, "1": UNIT},
      source != jnp.arange(2),
      resampled,
    )
    return theta[source], jnp.stack([new["0"], new["1"]], axis=1)

  def step(carry, k):
    theta, h = carry
    theta -= 0.01 * 2 * h * theta
    if evolves:
      key = jax.random.fold_in(jax.random.key(seed), k)
      evolved = evolve(theta, h, key)
      ready = k % 4 == 3
      theta, h = (
        jnp.where(ready, x, y) for x, y in zip(evolved, (theta, h), strict=True)
      )
    return (theta, h), None

  start = jnp.full((2, 2), 0.9), jnp.eye(2)
  (theta, _), _ = jax.lax.scan(step, start, jnp.arange(200))
  return jnp.max(scores(theta))


def test_the_papers_toy_is_solved_by_new_draws_and_not_by_factors():
  solved = [float(toy(seed, True, 0.25)) for seed in range(20)]
  assert min(solved) >= 1.15
  # A zero stays a zero, so that each member minimizes only one coordinate.
  factors = [float(toy(seed, True, 0.0)) for seed in range(20)]
  constant = float(toy(0, False, 0.0))
  np.testing.assert_allclose([constant, *factors], 0.39, atol=0.001)


def sources(config, scores, draws=200):
  keys = jax.random.split(jax.random.key(0), draws)
  rule = functools.partial(populations.exploit, config)
  return np.asarray(jax.vmap(rule, (0, None))(keys, jnp.array(scores)))


def test_the_worst_fifth_copies_any_of_the_best_fifth():
  copies = sources(TRUNCATION, [0.3, 0.9, NAN, 0.8, 0.5, 0.1, 0.7])
  own = np.arange(7)
  for k in (0, 1, 3, 4, 6):
    assert (copies[:, k] == own[k]).all()
  for k in (2, 5):  # The diverged one, and the worst of the others.
    assert {*copies[:, k]} == {1, 3}
    assert abs((copies[:, k] == 1).mean() - 0.5) < 5 * 0.5 / np.sqrt(200)


@pytest.mark.parametrize("exploit", ["truncation", "tournament"])
def test_a_member_that_diverged_is_not_copied(exploit):
  config = populations.Config(exploit=exploit)
  assert (sources(config, [NAN] * 4) == np.arange(4)).all()
  assert (sources(config, [NAN]) == 0).all()
  copies = sources(config, [NAN, NAN, 0.1])
  assert {*copies[:, 0]} <= {0, 2} and 2 in copies[:, 0]
  assert (copies[:, 2] == 2).all()


def test_in_a_tournament_a_member_copies_another_that_is_better_by_a_margin():
  config = populations.Config(exploit="tournament", margin=0.25)
  copies = sources(config, [0.0, 0.25, 0.5, 1.0])
  assert {*copies[:, 0]} == {0, 2, 3}
  assert {*copies[:, 1]} == {1, 3} and {*copies[:, 2]} == {2, 3}
  # Each of the three others is drawn equally often.
  assert abs((copies[:, 2] == 3).mean() - 1 / 3) < 5 * 0.47 / np.sqrt(200)
  assert {*copies[:, 3]} == {3}


def test_without_exploitation_nothing_changes():
  config = populations.Config(exploit="none", explore="drift")
  assert (sources(config, [0.0, 1.0]) == np.arange(2)).all()
  values = {"rate": jnp.full(100, 1e-3)}
  key, copied = jax.random.key(0), jnp.ones(100, bool)
  new = populations.explore(config, key, values, {"rate": RATES}, copied)
  np.testing.assert_array_equal(new["rate"], values["rate"])


def explored(explore, value, copied=True, space=RATES):
  config = populations.Config(explore=explore)
  new = populations.explore(
    config,
    jax.random.key(1),
    {"rate": jnp.full(4_000, value), "other": jnp.ones(4_000)},
    {"rate": space},
    jnp.full(4_000, copied),
  )
  assert (new["other"] == 1).all()
  return np.asarray(new["rate"], np.float64)


def test_perturbed_values_are_multiplied_or_drawn_again():
  new = explored("perturb", 1e-3)
  scaled = [np.isclose(new, factor * 1e-3) for factor in (0.8, 1.2)]
  shares = [x.mean() for x in scaled]
  np.testing.assert_allclose(shares, 0.375, atol=5 * 0.484 / np.sqrt(4_000))
  drawn = np.log10(new[~(scaled[0] | scaled[1])])
  assert drawn.min() < -4.9 and drawn.max() > -1.1
  assert abs((drawn < -3).mean() - 0.5) < 5 * 0.5 / np.sqrt(len(drawn))
  assert (explored("perturb", 1e-3, copied=False) == np.float32(1e-3)).all()


@pytest.mark.parametrize("copied", [False, True])
def test_drifting_values_change_in_a_third_of_the_cases(copied):
  new = explored("drift", 1e-3, copied) / 1e-3
  shares = [np.isclose(new, x).mean() for x in (1 / 1.2, 1.0, 1.2)]
  expected = [0.165, 0.67, 0.165]
  np.testing.assert_allclose(shares, expected, atol=5 * 0.47 / np.sqrt(4_000))


@pytest.mark.parametrize("explore", ["perturb", "drift"])
def test_values_stay_in_their_space(explore):
  narrow = search_spaces.Range(0.9, 1.0, log=False, whole=False)
  new = explored(explore, 0.95, space=narrow)
  assert new.min() >= np.float32(0.9) and new.max() == 1.0


def test_an_agent_that_copies_keeps_its_counts():
  own = {"params": np.zeros(2), "count": np.int32(3)}
  other = {"params": np.ones(2), "count": np.int32(5)}
  result = populations.inherited(own, other)
  assert result["count"] == 3 and (result["params"] == 1).all()


@pytest.mark.parametrize(
  ("search", "message"),
  [
    ({"hidden_sizes": "64|128"}, "may change in a run.*found hidden_sizes"),
    ({"discount": "0.9|0.99"}, r"discount=LOW\.\.HIGH in a pop.*0.9\|0.99"),
    ({"discount": "0.5..1.5"}, "expected discount from 0.0 to 1.0, found 1.5"),
  ],
)
def test_a_search_of_other_settings_is_refused(search, message):
  with pytest.raises(types.ConfigError, match=message):
    populations.spaces(search, a2c.Config(), "--search")


def test_names_in_a_search_may_have_dashes():
  texts = {"learning-rate": "log:1e-5..1e-1"}
  spaces = populations.spaces(texts, a2c.Config(), "--search")
  assert spaces == {"learning_rate": RATES}
