"""gRPC transport of nests of NumPy arrays, as raw columns, without protobuf.

`Layout` says what messages look like, `server.Server` serves functions and
sessions, `Client` calls them. This page is the whole format, for clients in
another language: first of all calls, then of a thin actor's.
`tests/other_actor.py` is an actor that uses nothing of seedx.

**Calls.** gRPC over HTTP/2, on a unix socket or TCP, there with TLS where
`Security` says so. A server with a token wants it in each call's metadata,
`authorization: Bearer <token>`, and says nothing else to who does not have it;
a client must not send it without TLS. A method is
the path `/seedx/<name>`. Every method is a bidirectional stream of messages
which are bytes as described here, not protobufs: give gRPC identity serializers
and no compression. Reply number n answers request number n, and a client may
send requests ahead of the replies. A unary call to the same path is a stream of
one request.

**Handshake.** The call carries the request metadata `seedx-layout-bin` (binary,
so gRPC does the base64): a JSON object in UTF-8, sent once, before any
message::

    {"protocol": 2,
     "max_rows": 64,
     "columns": [{"name": "wait", "dtype": "<f4", "shape": [], "once": true},
                 {"name": "reward", "dtype": "<f4", "shape": [], "once": false},
                 {"name": "frame", "dtype": "|u1", "shape": [2, 3],
                  "once": false}],
     "hello": {"num_envs": 64}}

  * `protocol`: the integer 2.
  * `max_rows`: the most rows of a request that the client will send. Optional;
    the server refuses more than it takes.
  * `columns`: of the requests, in order, each with exactly these four keys.
    `name` is the path of a leaf in the nest, joined by `/`; `shape` is that of
    one row, possibly empty, possibly with zeros; `once` says that a message has
    one row of this column, however many it has of the others. `dtype` is one of
    `|b1` (a byte, 0 or 1), `|i1 |u1` (bytes), `<i2 <i4 <i8 <u2 <u4 <u8`
    (integers), `<f2 <f4 <f8` (IEEE 754 floats), `<c8 <c16` (complex: real, then
    imaginary part); the digit counts bytes and `<` is little-endian.
  * `hello`: an object that the method's session reads. Optional.

Columns follow the leaves of the nest: tuples and lists by position (names `0`,
`1`, ...), NamedTuples by field, dicts by sorted key. A nest that is a bare
array has the empty name; below a NamedTuple's field, a bare array has the
field's name alone. Servers compare `protocol` and `columns` with their own,
order and names included. If all agree, the server answers at once with initial
metadata of the same key: a JSON object with `protocol`, `max_rows` and
`columns` of the *replies*, and `welcome`, an object that the session wrote. The
client compares it with what it expects. The answer may have 1 MiB; raise
`grpc.max_metadata_size` in the client too. A handshake has at most 16 KiB and
four times its columns; a server refuses a larger one without reading it.

**Messages.** Both directions are alike, all integers little-endian::

    offset  size  what
    0       4     magic, the ASCII letters SEDX
    4       2     u16 protocol, 2
    6       2     u16 reserved, 0
    8       4     u32 rows, 1 to max_rows; 1 where each column is `once`
    12      4     u32 bytes of the whole message, this header included
    16            the columns, in the order of the handshake

A column is its array `[rows, *shape]`, or `[*shape]` if it is `once`, in C
order (the last index runs fastest), contiguous, followed by 0 to 7 zero bytes,
so that its size is a multiple of 8 and the next column starts at a multiple of
8. The last one is padded too. For the handshake above, 3 rows have 16 + 8 (4
and 4 of padding) + 16 (12 and 4) + 24 (18 and 6) = 64 bytes. The transport does
not ask that a reply has as many rows as its request.

**On one machine.** gRPC needs ten times the CPU of a plain socket. Over a unix
socket a client may add `"pipe": true` to its JSON object. If the server's then
has a `pipe`, of 32 hexadecimal digits, the client connects within 5 s to the
unix socket whose path is the server's and `-messages`, and sends the 16 bytes
that these digits say. From then on all messages of the call, in both
directions, go through that socket, each right after the one before. The end of
the client's half of it is that of its requests. The call stays open meanwhile;
once the server's half has ended, it says how, as any other does.

**Status.** How a call ends:

  * OK: the client half-closed and everything is answered; or, between two
    replies, the server has stopped: its work is over.
  * CANCELLED, unless the client itself cancelled: the server has stopped while
    the stream waited for a request or a reply, or before it was opened. Its
    work is over, as with OK. Where the details are no `name: reason` and
    messages go by gRPC, it may also be that the client sent nothing, or took no
    reply, for 300 s. A call of `/seedx/` tells: it ends with UNIMPLEMENTED
    where the server goes on, and the client tries again, as it does without an
    answer within 5 s.
  * UNAVAILABLE: no server, or one that crashed, or one about to stop, of which
    a function was called; or the client sent nothing, or took no reply, for
    300 s, and messages go through a pipe: try again.
  * UNAUTHENTICATED: the metadata do not have the run's token.
  * UNIMPLEMENTED: no such method; the message has those there are.
  * FAILED_PRECONDITION: the handshake does not fit; the message has what was
    expected and found, for the first column that differs.
  * INVALID_ARGUMENT: a message does not follow its layout (magic, protocol,
    reserved, rows, size), or a number in it is not in its range; the message
    has what was expected and found. Nothing of it is learned from or counted.
  * RESOURCE_EXHAUSTED: the method already has `max_streams` calls; or a stream
    from the same host was silent, and others have 5 s to take its place; or a
    request is more than about twice as large as any that the layouts allow; or
    the handshake is too large.
  * INTERNAL: the server's function raised; the message has its error.
  * DEADLINE_EXCEEDED: the client's own deadline.
  * Any other code: the function or session chose it, with `Refused`.

A connection has at most 100 calls at a time. One that was refused or cancelled
counts for 10 s more; HTTP/2 refuses those beyond, so reconnect. An end of one
stream leaves all other streams alone. Keepalive pings are sent by
both ends every 20 s; a server accepts one every 5 s.

**A thin actor** steps n environments for a learner of the pipeline `seed`. It
opens one stream of `/seedx/act`, with the hello `{"num_envs": n}`; the welcome
is `{"first_seed": s}`, and environment k is to be seeded with s + k. The
columns of its requests are, in this order::

    index                 <i4  []   which of the environments, from 0 to n - 1
    timestep/step_type    |u1  []   0 FIRST, 1 MID, 2 LAST
    timestep/reward       <f4  []
    timestep/discount     <f4  []
    timestep/observation  as in the learner's environment
    episode_return        <f4  []

An observation that is a dict has a column `timestep/observation/<key>` for each
key, sorted. Replies have one column, whose name is empty: the action of each
row of the request, in its order; the handshake has its dtype and shape. The
learner's refusal says which columns it expects. A request has any of the
environments that do not wait for an action, each at most once; so several
requests can be under way.

  * The first row of an environment in a stream is a FIRST: reward 0, discount
    1, and the observation of its reset. So is the row after each LAST.
  * The row after an action is a MID or a LAST, with the reward that the action
    brought, and discount 1; the discount of a LAST is 0 where the episode
    terminated, and 1 where it was truncated, as by a time limit.
  * A LAST is answered with an action too. It is ignored: the environment is
    reset instead.
  * Rewards and floats in observations are finite; a discount is from 0 to 1.
  * `episode_return` is the sum of the episode's rewards in the row of its LAST,
    and NaN in every other. The learner computes that sum itself. Only where
    EnvPool's Atari clips rewards or ends episodes with lives does it read the
    column: the return of a whole game, at most 1e6 for each clipped reward of
    1, is in the row of its last LAST.

A row that breaks one of these rules ends the stream with INVALID_ARGUMENT.

The stream ends as above: after OK or CANCELLED the actor's work is done; after
UNAVAILABLE or RESOURCE_EXHAUSTED it tries again, with environments that begin
anew and the seeds of the new welcome.
"""

import os

# Or else gRPC writes a line to stderr for each connection that ends.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from grpc import StatusCode

from seedx.wire.calls import (
  SILENT_SECONDS,
  Refused,
  WireError,
  check_finite,
  check_range,
  does_not_fit,
  invalid,
  unwelcome,
)
from seedx.wire.client import Client, Stream
from seedx.wire.layout import NOTHING, Column, Layout, MessageError, once
from seedx.wire.reconnect import Doubts, GaveUpError, until_done
from seedx.wire.security import LOCAL, Security, check_address, reached

__all__ = [
  "LOCAL",
  "NOTHING",
  "SILENT_SECONDS",
  "Client",
  "Column",
  "Doubts",
  "GaveUpError",
  "Layout",
  "MessageError",
  "Refused",
  "Security",
  "StatusCode",
  "Stream",
  "WireError",
  "check_address",
  "check_finite",
  "check_range",
  "does_not_fit",
  "invalid",
  "once",
  "reached",
  "until_done",
  "unwelcome",
]
