# %% [markdown]
# # A game that plays itself
#
# AlphaZero ([Silver et al. 2018](https://doi.org/10.1126/science.aar6404))
# learns a game from its rules alone, by playing against itself. Before each
# move it searches with a network. The network then learns what the search
# preferred, and how the game ended, which makes the next search better.
#
# Here it learns tic-tac-toe. Then you see what a search looks at, count all
# games that the agent can lose, and play against it.

# %% [markdown]
# ## Train
#
# `alphazero` runs the pipeline `anakin`: 128 games, their searches of 32
# simulations and the updates are one program. It takes 40 seconds on two CPU
# cores that do nothing else, of which JAX compiles for 10; the last line of the
# output has the CPU time that other programs took meanwhile.

# %%
# !{sys.executable} -m seedx train alphazero --env seedx:TicTacToe \
#   --run-dir runs/tictactoe

# %% [markdown]
# In self-play, each reward is that of the player that moved. So the return of a
# game is 1 if either side wins, and 0 for a draw. It begins near 0.9, because
# players without a plan soon leave a line open. It falls to 0 as both sides
# learn to defend: tic-tac-toe between perfect players is a draw.
#
# The second metric is the difference between the search's policy and the
# network's. While it is large, the network still learns from its search.

# %%
import matplotlib.pyplot as plt

from seedx import metrics

plt.rcParams.update({"figure.dpi": 80, "font.size": 15})
lines = [
  line
  for line in metrics.read_lines("runs/tictactoe/metrics.jsonl")
  if line["learner_steps"]
]
fig, axes = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
titles = {
  "episode_return": "episode_return:\nshare of games with a winner",
  "search_kl": "search_kl: divergence of the\nnetwork's policy from the search's",
}
for ax, (name, title) in zip(axes, titles.items(), strict=True):
  ax.plot(
    [line["episodes"] for line in lines],
    [line[name] for line in lines],
    color="#0072B2",
    linewidth=2,
  )
  ax.set(title=title, xlabel="games", ylim=(0, None))
  ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## All positions at once
#
# Tic-tac-toe has 4,520 positions of unfinished games, so one batch can have
# them all. A position is seen by the player to move: one plane has this
# player's stones, the other plane those of the opponent. Square `k` is bit `k`
# of an integer:
#
# ```
# 0 1 2
# 3 4 5
# 6 7 8
# ```

# %%
import numpy as np

LINES = (7, 56, 448, 73, 146, 292, 273, 84)


def won(stones):
  return any(stones & line == line for line in LINES)


def free(own, other):
  return [k for k in range(9) if not (own | other) >> k & 1]


def all_positions():
  """Numbers the positions (own stones, other stones) of unfinished games."""
  numbers, ahead = {}, [(0, 0)]
  while ahead:
    own, other = ahead.pop()
    if (own, other) in numbers or won(other) or not free(own, other):
      continue
    numbers[own, other] = len(numbers)
    ahead += [(other, own | 1 << k) for k in free(own, other)]
  return numbers


POSITIONS = all_positions()
boards = np.array(
  [[[x >> k & 1 for k in range(9)] for x in pair] for pair in POSITIONS],
  np.int8,
).reshape(-1, 2, 3, 3)
print(f"{len(boards):,} positions")

# %% [markdown]
# `alphazero.evaluation` is the network as a function of positions, and
# `search.search` the search with it, without noise, as in `seedx evaluate`. The
# same search with an untrained network shows what learning adds.

# %%
import jax

from seedx import app
from seedx.agents import alphazero
from seedx.envs import functional
from seedx.envs.functional import search

SIMULATIONS = 32
game = functional.TicTacToe()
policy = app.load("runs/tictactoe")
network = alphazero.evaluation(alphazero.Config(), policy.spec)


@jax.jit
def look(params, boards):
  """Evaluates positions, and searches from them."""
  rng_key = jax.random.key(0)
  estimate = network(params, rng_key, boards)
  result = search.search(
    game, network, params, rng_key, boards, num_simulations=SIMULATIONS
  )
  return {
    "policy": jax.nn.softmax(estimate.logits),
    "value": estimate.value,
    "visits": result.visits,
    "search policy": result.policy,
    "action": result.action,
  }


untrained_params = policy.agent.acting(policy.agent.init(jax.random.key(0)))
trained, untrained = (
  jax.tree.map(np.asarray, look(params, boards))
  for params in (policy.acting, untrained_params)
)

# %% [markdown]
# ## What a search looks at
#
# Each row is a position, in which the side that is named at the left moves. A
# number in a square is about the move there:
#
# * the share of the 32 simulations that went through it, with the untrained
#   network;
# * the probability that the trained network gives to it, without a search;
# * the trained network's value after it, from -1 (lost) to 1 (won), seen by the
#   side that moves;
# * the share of the simulations, with the trained network;
# * the policy that the search finds, from which the network learns.
#
# A bold number is the move that the search chooses. The search drops the worse
# half of the moves again and again, so the last two have about the same share
# of the simulations; their values decide between them.


# %%
def value_of_moves(own, other):
  """The network's value of each move for the player to move."""
  values = np.full(9, np.nan)
  for k in free(own, other):
    after = own | 1 << k
    if won(after):
      values[k] = 1.0
    elif free(after, other):
      values[k] = -trained["value"][POSITIONS[other, after]]
    else:
      values[k] = 0.0
  return values


def draw_board(
  ax, own, other, numbers=None, chosen=None, colours="Blues", low=0.0
):
  """Draws a position, and a number in each empty square."""
  moved = own.bit_count() + other.bit_count()
  crosses, noughts = (own, other) if moved % 2 == 0 else (other, own)
  shades = np.full(9, np.nan)
  if numbers is not None:
    shades[free(own, other)] = numbers[free(own, other)]
  ax.imshow(shades.reshape(3, 3), cmap=colours, vmin=low, vmax=1.0, alpha=0.7)
  for k in range(9):
    place = k % 3, k // 3
    if crosses >> k & 1 or noughts >> k & 1:
      letter = "X" if crosses >> k & 1 else "O"
      ax.text(*place, letter, ha="center", va="center", size=26, weight="bold")
    else:
      text = str(k) if numbers is None else f"{shades[k]:.2f}"
      weight = "bold" if k == chosen else "normal"
      ax.text(*place, text, ha="center", va="center", size=13, weight=weight)
  ax.set(xticks=[0.5, 1.5], yticks=[0.5, 1.5], xticklabels=[], yticklabels=[])
  ax.grid(color="0.4")
  ax.tick_params(length=0)


def stones(*squares):
  return sum(1 << k for k in squares)


shown = {
  "X begins": (0, 0),
  "O must take\nthe centre": (0, stones(0)),
  "O must not take\na corner": (stones(4), stones(0, 8)),
  "X can win\nat 2": (stones(0, 1), stones(3, 4)),
}
titles = (
  "untrained:\nsimulations",
  "trained:\nnetwork alone",
  "trained:\nvalues",
  "trained:\nsimulations",
  "trained:\nsearch's policy",
)
fig, axes = plt.subplots(
  len(shown), 5, figsize=(14, 2.9 * len(shown)), layout="constrained"
)
for row, (name, position) in zip(axes, shown.items(), strict=True):
  k = POSITIONS[position]
  first, second = untrained["action"][k], trained["action"][k]
  draw_board(row[0], *position, untrained["visits"][k], first)
  draw_board(row[1], *position, trained["policy"][k])
  values = value_of_moves(*position)
  draw_board(row[2], *position, values, colours="RdBu", low=-1.0)
  draw_board(row[3], *position, trained["visits"][k], second)
  draw_board(row[4], *position, trained["search policy"][k], second)
  row[0].set_ylabel(name)
for ax, title in zip(axes[0], titles, strict=True):
  ax.set_title(title)
plt.show()

# %% [markdown]
# ## Every game that it can lose
#
# The agent is deterministic, so the opponent's moves decide the game. Walking
# through all of them gives an exact result, not a sample: the number of games
# that an opponent can win, and the expected result against random moves.


# %%
def games_against(answers, is_first):
  """Yields the result for the agent of each game, and its probability.

  The probability is that of an opponent that moves at random.
  """
  ahead = [(0, 0, is_first, 1.0)]
  while ahead:
    own, other, is_agent, chance = ahead.pop()
    if won(other) or not free(own, other):  # The other side moved last.
      yield (0 if not won(other) else -1 if is_agent else 1), chance
      continue
    moves = free(own, other)
    if is_agent:
      moves = [int(answers[POSITIONS[own, other]])]
    ahead += [
      (other, own | 1 << k, not is_agent, chance / len(moves)) for k in moves
    ]


players = {
  "untrained network, search": untrained["action"],
  "trained network alone": np.argmax(trained["policy"], axis=-1),
  "trained network, search": trained["action"],
}
print(f"{'':<26}  moves   lost games   against random: won, drawn, lost")
for name, answers in players.items():
  for seat in ("first", "second"):
    results, chances = np.array([*games_against(answers, seat == "first")]).T
    shares = [chances[results == x].sum() for x in (1, 0, -1)]
    print(
      f"{name:<26}  {seat:<6}{np.sum(results < 0):>4} of {len(results):>4}"
      f"   {shares[0]:>20.3f}{shares[1]:>7.3f}{shares[2]:>7.3f}"
    )

# %% [markdown]
# In larger games, only a sample is possible. `seedx arena` lets all pairs of
# players play, half of the games with each as first: runs, also untrained or
# without their search (`:network`), random moves, a tree search with random
# playouts, and perfect play, which tic-tac-toe is small enough for. A draw
# counts half in a score. Two runs begin each game with two random moves, since
# all their games would otherwise be the same; the player that moves second may
# then be lost from the start.

# %%
# !{sys.executable} -m seedx arena runs/tictactoe runs/tictactoe:network \
#   runs/tictactoe@untrained --games 100

# %% [markdown]
# ## Play by typing
#
# Type the squares that you want to take, in this order, and run the cell again
# with one more square after each reply. The cell skips squares that are taken.
# The picture shows each of the agent's searches, then the last position.


# %%
def play(*squares, first=True):
  """Plays against the agent; draws its searches and the last position."""
  own, other, is_agent, left = 0, 0, not first, list(squares)
  pictures = []
  while free(own, other) and not won(other):
    if is_agent:
      number = POSITIONS[own, other]
      square = int(trained["action"][number])
      pictures.append((own, other, trained["visits"][number], square))
    else:
      open_squares = [k for k in left if k in free(own, other)]
      if not open_squares:
        break
      square = open_squares[0]
      left.remove(square)
    own, other, is_agent = other, own | 1 << square, not is_agent
  pictures.append((own, other, None))
  _, axes = plt.subplots(1, 5, figsize=(14, 3), layout="constrained")
  for ax in axes:
    ax.axis("off")
  for ax, picture in zip(axes, pictures[-5:], strict=False):
    ax.axis("on")
    draw_board(ax, *picture)
  plt.show()
  if won(other):
    print("You win." if is_agent else "The agent wins.")
  elif free(own, other):
    print("Your move: type one more square.")
  else:
    print("A draw.")


play(0, 8)

# %% [markdown]
# A player that takes the squares from left to right, and moves second. (The agent
# may let a line of three wait: a later win is worth as much, `--discount 1`.)

# %%
play(*range(9), first=False)

# %% [markdown]
# ## Play by clicking
#
# The next cell writes the agent's answers to all positions that can arise into
# a page, so clicking needs no library of widgets and no running kernel. (GitHub
# shows the board, but does not run its script.) The shade of a square is the
# share of the simulations in the agent's last search.

# %%
import json

from IPython.display import HTML

PAGE = """
<div id="seedx-game" style="font: 16px sans-serif">
  <div class="cells" style="display: grid; width: 192px;
    grid-template-columns: repeat(3, 64px)"></div>
  <p class="result">&nbsp;</p>
  <button data-first="1">New game: you move first</button>
  <button data-first="">New game: the agent moves first</button>
</div>
<script>
(() => {
  const answers = ANSWERS;  // position: [square, visits of each square in %]
  const lines = LINES;
  const game = document.getElementById("seedx-game");
  const cells = game.querySelector(".cells");
  const result = game.querySelector(".result");
  const won = (stones) => lines.some((line) => (stones & line) === line);
  let you, agent, yourLetter;

  const over = () => won(you) || won(agent) || (you | agent) === 511;

  function show(visits) {
    cells.replaceChildren();
    for (let k = 0; k < 9; k++) {
      const cell = document.createElement("button");
      const isYours = you >> k & 1, isAgents = agent >> k & 1;
      const agentsLetter = yourLetter === "X" ? "O" : "X";
      cell.textContent = isYours ? yourLetter : isAgents ? agentsLetter : "";
      cell.ariaLabel = `square ${k} ${cell.textContent}`;
      const share = visits ? visits[k] / 100 : 0;
      cell.style.cssText = "height: 64px; font: bold 28px sans-serif;" +
        "color: #111; border: 1px solid #666;" +
        `background: rgb(${255 - 200 * share}, ${255 - 110 * share}, 255)`;
      cell.disabled = isYours || isAgents || over();
      cell.onclick = () => move(k);
      cells.append(cell);
    }
    result.textContent = won(you) ? "You win." : won(agent) ?
      "The agent wins." : over() ? "A draw." : "Your move.";
  }

  function reply() {
    const [square, visits] = answers[`${agent} ${you}`];
    agent |= 1 << square;
    show(visits);
  }

  function move(square) {
    you |= 1 << square;
    if (over()) show(); else reply();
  }

  function start(isFirst) {
    [you, agent, yourLetter] = [0, 0, isFirst ? "X" : "O"];
    if (isFirst) show(); else reply();
  }

  for (const button of game.querySelectorAll("[data-first]")) {
    button.onclick = () => start(button.dataset.first);
  }
  start(true);
})();
</script>
"""


def all_answers():
  """Maps the positions in which the agent moves to its answers and visits."""
  answers, ahead = {}, [(0, 0, True), (0, 0, False)]
  while ahead:
    own, other, is_agent = ahead.pop()
    if won(other) or not free(own, other):
      continue
    moves = free(own, other)
    if is_agent:
      number = POSITIONS[own, other]
      moves = [int(trained["action"][number])]
      visits = np.rint(100 * trained["visits"][number]).astype(int).tolist()
      answers[f"{own} {other}"] = [moves[0], visits]
    ahead += [(other, own | 1 << k, not is_agent) for k in moves]
  return answers


HTML(
  PAGE.replace("ANSWERS", json.dumps(all_answers())).replace(
    "LINES", json.dumps(LINES)
  )
)

# %% [markdown]
# ## Next
#
# * The same agent in other pipelines: `seed_alphazero` searches for all actors'
#   games in one batch, `apex_alphazero` has workers that play by themselves.
# * A larger game: `--env seedx:ConnectFour --residual-blocks 4`.
# * Your own game is one class of pure functions: `docs/games.md` adds Nim, where
#   the agent learns to win as first against a perfect player.
# * Without a search: PPO and DQN learn a game against an opponent, `seedx train
#   ppo --env seedx:TicTacToe --env-options opponent=perfect`.
