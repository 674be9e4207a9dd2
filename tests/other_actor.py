"""An actor without seedx, as a model for actors in other languages.

  python other_actor.py HOST:PORT ENV_ID NUM_ENVS

steps Gymnasium environments for a learner of the pipeline `seed`.
`seedx/wire/__init__.py` specifies the protocol.
"""

import json
import queue
import struct
import sys

import grpc
import gymnasium
import numpy as np

KEY = "seedx-layout-bin"
FIRST, MID, LAST = range(3)


def main(address, env_id, num_envs):
  # The step after an episode's last one resets the environment, as in seedx.
  environments = gymnasium.make_vec(env_id, num_envs, vectorization_mode="sync")
  space = environments.single_observation_space
  columns = [
    {"name": name, "dtype": dtype, "shape": list(shape), "once": False}
    for name, dtype, shape in (
      ("index", "<i4", ()),
      ("timestep/step_type", "|u1", ()),
      ("timestep/reward", "<f4", ()),
      ("timestep/discount", "<f4", ()),
      ("timestep/observation", space.dtype.str, space.shape),
      ("episode_return", "<f4", ()),
    )
  ]
  layout = {"protocol": 2, "columns": columns, "hello": {"num_envs": num_envs}}
  requests = queue.SimpleQueue()
  replies = grpc.insecure_channel(address).stream_stream("/seedx/act")(
    iter(requests.get, None), metadata=[(KEY, json.dumps(layout).encode())]
  )
  answer = json.loads(dict(replies.initial_metadata())[KEY])
  action = answer["columns"][0]

  def send(step_type, reward, terminated, observation, returns):
    index = np.arange(num_envs)
    rows = (index, step_type, reward, 1 - terminated, observation, returns)
    data = b""
    for column, array in zip(columns, rows, strict=True):
      array = np.asarray(array).astype(column["dtype"])
      data += array.tobytes() + bytes(-array.nbytes % 8)
    header = (b"SEDX", 2, 0, num_envs, 16 + len(data))
    requests.put(struct.pack("<4sHHII", *header) + data)

  zeros, nan = np.zeros(num_envs), np.full(num_envs, np.nan)
  observation, _ = environments.reset(seed=answer["welcome"]["first_seed"])
  send(zeros + FIRST, zeros, zeros, observation, nan)
  last, total = zeros > 0, zeros
  try:
    for reply in replies:
      count = num_envs * int(np.prod(action["shape"]))
      actions = np.frombuffer(reply, action["dtype"], count, 16)
      actions = actions.reshape(num_envs, *action["shape"])
      first = last
      observation, reward, terminated, truncated, _ = environments.step(actions)
      last, total = terminated | truncated, np.where(first, 0, total + reward)
      step_type = np.where(first, FIRST, np.where(last, LAST, MID))
      returns = np.where(last, total, nan)
      send(step_type, reward, terminated, observation, returns)
  except grpc.RpcError as error:
    if error.code() is not grpc.StatusCode.CANCELLED:  # CANCELLED ends a run.
      raise


if __name__ == "__main__":
  main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
