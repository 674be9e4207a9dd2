"""Tables of an arena."""

from seedx.app.arena import ratings, tables


def test_tables_have_aligned_columns_and_fit_a_terminal():
  pair = tables.Pair(ratings.Counts(180, 15, 5), ratings.Counts(90, 0, 110))
  text = tables.Results.of(
    ["runs/tictactoe:network", "random"],
    {("runs/tictactoe:network", "random"): pair},
    {"runs/tictactoe:network": tables.Exam(3, 173, 40, 677)},
  ).text()
  for table in text.split("\n\n"):
    (width,) = {len(line) for line in table.splitlines()}
    assert width <= 100
  cells = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in text.split("\n\n")[0].splitlines()[2:]
  ]
  first, second, both = cells
  name = ["runs/tictactoe:network", "random"]
  assert first[:5] == [*name, "first", "180, 15, 5", "2.50%"]
  assert second[:5] == ["", "", "second", "90, 0, 110", "55.00%"]
  assert both[:5] == ["", "", "both", "270, 15, 115", "28.75%"]
  assert first[5].startswith("93.8% (")
