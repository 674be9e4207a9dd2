"""Developers' benchmarks: what they count, and that they run."""

import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks import accelerator, components, matrix_products
from benchmarks.speed import work


def test_operations_of_products_and_convolutions_are_counted():
  def program(x, y, image, kernel):
    def body(carry, _):
      return carry @ y, ()

    carry, _ = jax.lax.scan(body, x, length=7)
    convolved = jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID")
    either = jax.lax.cond(x[0, 0] > 0, lambda: x @ y @ y, lambda: x)
    return carry, convolved, jax.jit(lambda: jax.vmap(jnp.dot)(x, x))(), either

  shapes = (3, 4), (4, 4), (2, 5, 8, 8), (6, 5, 3, 3)
  jaxpr = jax.make_jaxpr(program)(*map(jnp.ones, shapes)).jaxpr
  product, dot_products = 2 * 3 * 4 * 4, 2 * 3 * 4
  convolution = 2 * (2 * 6 * 6 * 6) * (5 * 3 * 3)
  assert (
    matrix_products.operations(jaxpr)
    == 9 * product + convolution + dot_products
  )


@pytest.mark.parametrize(
  "words", [words for words, _ in (*accelerator.RUNS, *accelerator.MORE_RUNS)]
)
def test_command_lines_of_the_accelerator_benchmark_are_valid(words):
  work.config_of(words, "")


def test_the_table_has_the_share_of_environments_alone(tmp_path, monkeypatch):
  """The rows of other runs remain if a run fails."""

  def in_process(session, part):
    rates = (200.0, 400.0) if part == "environments alone" else (1.0,)
    yield from (accelerator.Row(part, rate) for rate in rates)

  def run(session, words, seconds):
    if words.startswith("impala"):
      raise RuntimeError("lost")
    yield accelerator.Row(
      words, 100.0, 0.5, 1.0, 2.0, session.share(words, 100.0)
    )

  monkeypatch.setattr(accelerator._Session, "_in_process", in_process)
  monkeypatch.setattr(accelerator._Session, "_run", run)
  options = "--minutes", "10", "--output-dir", str(tmp_path)
  assert accelerator.main(options) == 1
  lines = (tmp_path / "table.md").read_text().splitlines()
  titles, _, *rows = [line.split(" | ") for line in lines[2:]]
  assert titles[2] == "of EnvPool alone"
  of_run = {row[0].strip("|` "): row[2] for row in rows}
  assert next(iter(of_run)) == "environments alone" and "parts alone" in of_run
  for words, _ in (*accelerator.RUNS, *accelerator.MORE_RUNS):
    if not words.startswith("impala"):
      assert of_run[words] == ("0.25" if "Pong" in words else "-")


@pytest.mark.long
def test_the_program_reports_the_share_of_products(tmp_path, capsys):
  output = tmp_path / "found.jsonl"
  words = "--products a2c --seconds 0.5 --output"
  assert components.main([*words.split(), str(output)]) == 0
  first, *lines = [json.loads(x) for x in output.read_text().splitlines()]
  assert first["machine"]["devices"].endswith("CPU")
  assert all(x["value"] > 0 for x in lines)
  (share,) = [x["value"] for x in lines if x["of"] == "a2c"]
  assert share < 2
  assert "**a2c**" in capsys.readouterr().out
