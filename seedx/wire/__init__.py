"""gRPC transport of nests of NumPy arrays, as raw columns, without protobuf.

`Layout` says what messages look like, `Server` serves functions and sessions,
`Client` calls them. The rest of this page is the format, complete, for whoever
writes a client in another language.

**Calls.** Plain (insecure) gRPC over HTTP/2, TCP or a unix socket. A method is
the path `/seedx/<name>`. Every method is a bidirectional stream of messages
which are bytes as described here, not protobufs: give gRPC identity serializers
and no compression. Request number n is answered by reply number n, and a client
may send requests ahead of the replies. A unary call to the same path is a
stream of one request.

**Handshake.** The call carries the request metadata `seedx-layout-bin` (binary,
so gRPC does the base64): a JSON object in UTF-8, sent once, before any
message::

    {"protocol": 1,
     "max_rows": 64,
     "columns": [{"name": "discount", "dtype": "<f4", "shape": []},
                 {"name": "frame", "dtype": "|u1", "shape": [2, 3]}],
     "hello": {"envs": 64}}

  * `protocol`: the integer 1.
  * `max_rows`: the most rows of a request that the client will send. Optional;
    more than the server takes is refused.
  * `columns`: of the requests, in order, each with exactly these three keys.
    `name` is the path of a leaf in the nest, joined by `/`; `shape` is that of
    one row, possibly empty, possibly with zeros. `dtype` is one of `|b1` (a
    byte, 0 or 1), `|i1 |u1` (bytes), `<i2 <i4 <i8 <u2 <u4 <u8` (integers), `<f2
    <f4 <f8` (IEEE 754 floats), `<c8 <c16` (complex: real, then imaginary part);
    the digit counts bytes and `<` is little-endian.
  * `hello`: an object that the method's session reads. Optional.

Columns follow the leaves of the nest: tuples and lists by position (names `0`,
`1`, ...), NamedTuples by field, dicts by sorted key. Servers compare `protocol`
and `columns` with their own, order and names included. If all agree, the server
answers at once with initial metadata of the same key: a JSON object with
`protocol`, `max_rows` and `columns` of the *replies*, and `welcome`, an object
that the session wrote. The client compares it with what it expects. Metadata
has at most 1 MiB on either side; raise `grpc.max_metadata_size` in the client
too.

**Messages.** Both directions are alike, all integers little-endian::

    offset  size  what
    0       4     magic, the ASCII letters SEDX
    4       2     u16 protocol, 1
    6       2     u16 reserved, 0
    8       4     u32 rows, 1 to max_rows (exactly 1 where there are no columns)
    12      4     u32 bytes of the whole message, this header included
    16            the columns, in the order of the handshake

A column is its array `[rows, *shape]` in C order (the last index runs fastest),
contiguous, followed by 0 to 7 zero bytes, so that its size is a multiple of 8
and the next column starts at a multiple of 8. The last one is padded too. For
the handshake above, 3 rows have 16 + 16 (12 and 4 of padding) + 24 (18 and 6) =
56 bytes. Rows of a reply need not be as many as those of its request, as far as
the transport is concerned.

**Status.** How a call ends:

  * OK: the client half-closed and everything is answered; or, between two
    replies, the server has stopped: its work is over.
  * CANCELLED, unless the client itself cancelled: the server has stopped while
    the stream waited for a request or a reply. Its work is over, as with OK.
  * UNAVAILABLE: no server, a server about to stop, or one that crashed: try
    again.
  * UNIMPLEMENTED: no such method; the message has those there are.
  * FAILED_PRECONDITION: the handshake does not fit; the message has what was
    expected and found, for the first column that differs.
  * INVALID_ARGUMENT: a message does not follow its layout (magic, protocol,
    reserved, rows, size); the message has what was expected and found.
  * RESOURCE_EXHAUSTED: the method already has `max_streams` calls; or a request
    is more than about twice as large as any that the layouts allow.
  * INTERNAL: the server's function raised; the message has its error.
  * DEADLINE_EXCEEDED: the client's own deadline.
  * Any other code: the function or session chose it, with `Refused`.

An end of one stream leaves all other streams alone. Keepalive pings are sent by
both ends every 20 s; a server puts up with one every 5 s.
"""

import os

# Or else gRPC writes a line to stderr for each connection that ends.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from grpc import StatusCode

from seedx.wire.client import Client, Stream, WireError
from seedx.wire.exchange import Exchange
from seedx.wire.layout import Column, Layout, MessageError
from seedx.wire.reconnect import until_done
from seedx.wire.server import Refused, Server, Session

__all__ = [
  "Client",
  "Column",
  "Exchange",
  "Layout",
  "MessageError",
  "Refused",
  "Server",
  "Session",
  "StatusCode",
  "Stream",
  "WireError",
  "until_done",
]
