"""gRPC transport of nests of NumPy arrays, as raw columns, without protobuf.

`Layout` describes messages, `serving.Server` serves functions and sessions, and
`Client` calls them. The rest of this page specifies the protocol for programs
in other languages: first for all calls, then for thin actors.
`tests/other_actor.py` is an actor that uses nothing of seedx.

**Calls.** Calls are gRPC over HTTP/2, on a unix socket or on TCP, with TLS if
the server's `Security` has a certificate. If the server has a token, the
metadata of each call must have `authorization: Bearer <token>`; a client must
not send it without TLS. The path of a method is `/seedx/<name>`. Every method
is a bidirectional stream of messages, which are bytes as specified below, not
protobufs: give gRPC identity serializers, and no compression. Reply number n
answers request number n. A client may send requests before earlier ones are
answered. A unary call of the same path is a stream of one request.

**Handshake.** The metadata of each call have the key `seedx-layout-bin` (binary
metadata, which gRPC encodes as base64). The value is a JSON object in UTF-8::

    {"protocol": 2,
     "max_rows": 64,
     "columns": [{"name": "wait", "dtype": "<f4", "shape": [], "once": true},
                 {"name": "reward", "dtype": "<f4", "shape": [], "once": false},
                 {"name": "frame", "dtype": "|u1", "shape": [2, 3],
                  "once": false}],
     "hello": {"num_envs": 64}}

  * `protocol`: the integer 2.
  * `max_rows`: maximum number of rows in the client's requests. Optional; the
    server refuses a call with more than the server's own maximum.
  * `columns`: the columns of the requests, in order, each with exactly these
    four keys:

      * `name`: path of a leaf in the nest, joined by `/`.
      * `dtype`: one of `|b1` (a byte, 0 or 1), `|i1 |u1` (bytes), `<i2 <i4 <i8
        <u2 <u4 <u8` (integers), `<f2 <f4 <f8` (IEEE 754 floats), `<c8 <c16`
        (complex: the real, then the imaginary part). The digits are the number
        of bytes; `<` means little-endian.
      * `shape`: shape of one row, which may be empty and may have zeros.
      * `once`: whether a message has one row of this column, whatever its
        number of rows in other columns.

  * `hello`: a JSON object for the method's session. Optional.

Columns are the leaves of a nest in order. The names are positions (`0`, `1`,
...) in tuples and lists, fields in NamedTuples, and sorted keys in dicts. If
the whole nest is one array, its name is empty. The server compares `protocol`
and `columns`, including their order and names, with its own. If they agree, the
server answers at once with initial metadata under the same key: a JSON object
with `protocol`, `max_rows` and `columns` of the *replies*, and `welcome`, a
JSON object from the session. The client should compare the columns with its
own. The answer may have up to 1 MiB: raise `grpc.max_metadata_size`. The
client's object may have up to 16 KiB plus four times the size of its columns,
and at most 1 MiB; the server refuses a larger one without reading it.

**Messages.** Requests and replies have the same form. All integers are
little-endian::

    offset  size  content
    0       4     magic, the ASCII letters SEDX
    4       2     u16 protocol, 2
    6       2     u16 reserved, 0
    8       4     u32 number of rows, 1 to max_rows; 1 if all columns are `once`
    12      4     u32 number of bytes of the message, with this header
    16            the columns, in the order of the handshake

A column is an array `[rows, *shape]`, or `[*shape]` if it is `once`, contiguous
in C order (the last index runs fastest). Each column, including the last, is
followed by 0 to 7 zero bytes, so that its size is a multiple of 8. For the
handshake above, 3 rows have 16 + 8 (4 and 4 of padding) + 16 (12 and 4) + 24
(18 and 6) = 64 bytes. A reply need not have as many rows as its request.

**Messages on one machine.** gRPC needs ten times the CPU time of a plain
socket. A client of a unix socket may ask for a plain socket by `"pipe": true`
in its JSON object. If the server's object then has a `pipe` of 32 hexadecimal
digits:

  * The client connects within 5 s to the unix socket whose path is the server's
    with `-messages` appended, and within 1 s more sends the 16 bytes that the
    digits encode.
  * All messages of the call, in both directions, then go through this socket,
    without anything between them.
  * The client ends its requests by shutting down its half of the socket.
  * The gRPC call stays open, and ends with the status once the server has
    closed its half of the socket.

**Bundles.** A process may pass on the calls of others, such as all actors of
its machine, over one stream of `/seedx/bundles`. Its handshake has one column
with an empty name, dtype `|u1` and shape `[]`: each row is a byte. The server's
welcome is `{"methods": {<name>: [<requests>, <replies>]}}`, with `protocol`,
`max_rows` and `columns` of each method. A message in either direction is a
bundle of whole frames, and is no reply to another. A frame has these fields,
then zeros up to a multiple of 8 bytes::

    offset  size  content
    0       4     u32 number of the call, chosen by the client, once for each
    4       4     u32 kind: 0 OPEN, 1 ACCEPT, 2 MESSAGE, 3 END
    8       4     u32 number of bytes of the content
    12      4     u32 reserved, 0
    16            the content

  * OPEN, by the client: the call's path, a line feed, and the JSON object that
    a call of its own would have under `seedx-layout-bin`, with `"pipe": true`.
  * ACCEPT, by the server: the server's object, without a path to connect to.
  * MESSAGE: a request or a reply, in the form of all messages. The client waits
    for each reply before it sends the call's next request.
  * END, by the server: `{"code": <name of the status>, "details": <text>}`. END
    by the client has no content: the call's own client has left.

A frame other than OPEN, of a call that has ended, has no effect. A malformed
bundle ends the stream, and thus all of its calls, with INVALID_ARGUMENT; a
malformed request in a well-formed bundle ends its own call only. A bundle ends
with the first frame after which it has 32 KiB or more.

**Status.** A call ends with one of these statuses:

  * OK: the client has ended its requests and all are answered; or the server
    has stopped, and the stream ends right after a reply: its work is over.
  * CANCELLED, if the client itself has not cancelled: the server has stopped
    before it opened the stream, or while the stream waited for a request or a
    reply. The server's work is over, as with OK. Without a pipe,
    CANCELLED also ends the stream of a silent client, see UNAVAILABLE. If the
    details do not have the form `name: reason`, a call of `/seedx/` shows which
    of the two happened: if it ends with UNIMPLEMENTED or is not answered within
    5 s, the server is running, and the client should try again.
  * UNAVAILABLE: there is no server, or it has crashed, or it is stopping and
    the method has no sessions. Or, with a pipe, the client did not connect to
    the socket in time, or was silent: it sent no request, or received no reply,
    for 300 s. Try again.
  * UNAUTHENTICATED: the metadata do not have the run's token.
  * UNIMPLEMENTED: there is no such method; the details name the methods.
  * FAILED_PRECONDITION: the handshake does not fit; the details describe the
    first column that differs.
  * INVALID_ARGUMENT: a message does not follow its layout (magic, protocol,
    reserved, rows, size), or has a number outside its range; the details have
    the expected and the actual value. The message is neither counted nor
    used to learn.
  * RESOURCE_EXHAUSTED: the method already has `max_streams` calls; or a stream
    from the same host was silent, and other hosts have 5 s to take its place;
    or a request is larger than the layout allows (with a pipe), or more than
    about twice as large (without); or the handshake is too large.
  * INTERNAL: the server's function raised an error; the details have its text.
  * DEADLINE_EXCEEDED: the client's own deadline has passed.
  * Any other code: the function or the session raised `Refusal` with that code.

A connection has at most 100 calls at a time; a refused or cancelled call counts
until 10 s after its end. gRPC refuses further calls on the connection; open
another connection for them. The end of a stream does not affect other streams.
Both ends send keepalive pings every 20 s; a server accepts one every 5 s.

**Thin actors.** A thin actor steps n environments for a learner of the pipeline
`seed`. The actor opens one stream of `/seedx/act` with the hello
`{"num_envs": n}`. The welcome is `{"first_seed": s}`: the seed of environment k
is s + k. (The learner of `pool` does not act, and its welcome is `{"addresses":
[...]}`: open the stream at the first of them that has room. When that stream is
over, ask the learner again.) Requests have these columns, in this order::

    index                 <i4  []   number of the environment, from 0 to n - 1
    timestep/step_type    |u1  []   0 FIRST, 1 MID, 2 LAST
    timestep/reward       <f4  []
    timestep/discount     <f4  []
    timestep/observation  dtype and shape of the learner's environment
    episode_return        <f4  []

If observations are dicts, there is a column `timestep/observation/<key>` for
each key, in sorted order. If the columns differ, the learner refuses the call,
and the details of the status list the columns that it expects. Replies have one
column with an empty name: the actions for the rows of the request, in the same
order. Its dtype and shape are in the server's handshake. A nest of actions is
one vector, see `seedx/envs/actions.py`. A request has rows of any environments
that are not waiting for an action, at most one for each, so several requests
can be unanswered at a time.

  * The first row of an environment in a stream is a FIRST, and so is the row
    after each LAST. A FIRST has reward 0, discount 1, and the observation after
    a reset.
  * The row after an action is a MID or a LAST, with the action's reward. Its
    discount is 1, or 0 if the episode has terminated; an episode that was
    truncated, as by a time limit, ends with discount 1.
  * The reply to a LAST has an action too. Ignore it and reset the environment.
  * Rewards and floats in observations are finite; discounts are from 0 to 1.
  * `episode_return` is the sum of the episode's rewards in a LAST, and NaN in
    all other rows. The learner computes this sum itself, and reads the column
    only if EnvPool's Atari clips rewards or ends episodes with lives. Then the
    LAST of the game's last life has the return of the whole game, at most 1e6
    for each clipped reward of 1.

A step type, number or return that breaks these rules ends the stream with
INVALID_ARGUMENT. The reward of a FIRST is ignored.

After OK or CANCELLED, as described above, the actor's work is over. After
UNAVAILABLE or RESOURCE_EXHAUSTED, the actor tries again, with a reset of all
environments and the seeds of the new welcome.
"""

import os

# By default, gRPC writes a line to stderr for each connection that ends.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from grpc import StatusCode

from seedx.wire.array_layout import NOTHING, Column, Layout, MessageError, once
from seedx.wire.authentication import (
  LOCAL,
  Security,
  check_address,
  reachable_address,
)
from seedx.wire.calls import (
  SILENT_SECONDS,
  Refusal,
  WireError,
  bad_welcome,
  check_finite,
  check_range,
  does_not_fit,
  invalid,
)
from seedx.wire.clients import Client, Stream
from seedx.wire.reconnect import GaveUpError, SecurityCheck, until_done
from seedx.wire.unix_pipe import has_room

__all__ = [
  "LOCAL",
  "NOTHING",
  "SILENT_SECONDS",
  "Client",
  "Column",
  "GaveUpError",
  "Layout",
  "MessageError",
  "Refusal",
  "Security",
  "SecurityCheck",
  "StatusCode",
  "Stream",
  "WireError",
  "bad_welcome",
  "check_address",
  "check_finite",
  "check_range",
  "does_not_fit",
  "has_room",
  "invalid",
  "once",
  "reachable_address",
  "until_done",
]
