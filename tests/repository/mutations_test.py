"""Tests that the list of mutations fits the code."""

import pathlib

from tests import mutations

ROOT = pathlib.Path(__file__).parents[2]


def test_each_mutation_changes_one_expression_that_tests_cover():
  listed = mutations.mutations()
  assert len({x.name for x in listed}) == len(listed) > 20
  for mutation in listed:
    code = (ROOT / mutation.path).read_text(encoding="utf-8")
    assert code.count(mutation.old) == 1, mutation.name
    assert all((ROOT / x).is_file() for x in mutation.tests), mutation.name
