"""Makes certificates and a token for a run on several machines.

  seedx certificates DIR --hosts learner-host,10.0.0.5

Writes four files to DIR. Processes that listen, such as the learner, need
`certificate.pem` and `key.pem`; all others need `ca.pem`; and all need `token`:

  python -m experiments.seed_vtrace --role learner --address 0.0.0.0:8470
    --tls-certificate DIR/certificate.pem --tls-key DIR/key.pem
    --token-file DIR/token
  seedx join learner-host:8470 --tls-ca DIR/ca.pem --token-file DIR/token

If a process that listens gets `--tls-ca`, too, it accepts only clients that
have the certificate and its key. The authority's key is not kept: for other
hosts, make all files again. The command needs the program openssl, version 3.
"""

import dataclasses
import ipaddress
import os
import pathlib
import re
import secrets
import subprocess
import tempfile
from collections.abc import Sequence

from seedx import files, types
from seedx.app.cli import command_line

_ALWAYS = ("localhost", "127.0.0.1", "::1")
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
_TOKEN_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of the command line.

  Attributes:
    directory: directory to make.
    hosts: names and IP addresses, as A,B, of the machines whose processes
      listen; localhost is added.
    days: number of days for which the certificates are valid.
  """

  directory: str = ""
  hosts: tuple[str, ...] = ()
  days: int = types.setting(365, low=1, high=36_500)

  def __post_init__(self) -> None:
    types.check_settings(self)
    for host in self.hosts:
      if not re.fullmatch(r"[A-Za-z0-9*._:-]+", host):
        raise types.ConfigError(
          f"expected names or IP addresses of hosts, found {host!r}"
        )


def main(argv: Sequence[str] | None = None) -> int:
  """Makes the files; returns the exit status."""
  return command_line.run(
    _make,
    options=Options(),
    name="seedx certificates",
    description=__doc__,
    argv=argv,
    positional=("directory",),
  )


def _make(options: Options) -> int:
  directory = pathlib.Path(options.directory).expanduser()
  if directory.exists():
    raise types.ConfigError(
      f"{str(directory)!r} already exists; choose one that does not exist"
    )
  # Only the owner may read the files.
  old_umask = os.umask(0o077)
  try:
    files.Folder(directory.parent).make()
    with tempfile.TemporaryDirectory(dir=directory.parent) as folder:
      made = pathlib.Path(folder) / "made"
      made.mkdir()
      _sign(made, options)
      (made / "token").write_text(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
      made.rename(directory)
  except OSError as error:
    raise types.ConfigError(
      f"cannot make the directory {str(directory)!r} ({error.strerror});"
      " choose another"
    ) from error
  finally:
    os.umask(old_umask)
  print(
    f"made ca.pem, certificate.pem, key.pem and token in {directory}",
    flush=True,
  )
  return 0


def _sign(directory: pathlib.Path, options: Options) -> None:
  """Writes the certificates, signed by an authority whose key is not kept."""
  days = ("-days", str(options.days))
  names = dict.fromkeys((*options.hosts, *_ALWAYS))
  with tempfile.TemporaryDirectory(prefix="seedx-") as folder:
    ca_key = pathlib.Path(folder) / "ca.key"
    ca = directory / "ca.pem"
    _request(
      ["-subj", "/CN=seedx authority", "-keyout", ca_key, "-out", ca, *days],
      extensions=("basicConstraints=critical,CA:TRUE",),
    )
    key = ("-keyout", directory / "key.pem")
    out = ("-out", directory / "certificate.pem")
    _request(
      ["-subj", "/CN=seedx", "-CA", ca, "-CAkey", ca_key, *days, *key, *out],
      extensions=(
        "basicConstraints=critical,CA:FALSE",
        "extendedKeyUsage=serverAuth,clientAuth",
        f"subjectAltName={','.join(map(_name, names))}",
      ),
    )


def _name(host: str) -> str:
  try:
    return f"IP:{ipaddress.ip_address(host)}"
  except ValueError:
    return f"DNS:{host}"


def _request(
  words: Sequence[str | pathlib.Path], extensions: Sequence[str]
) -> None:
  added = [word for text in extensions for word in ("-addext", text)]
  command = ["openssl", "req", "-x509", *_KEY, *map(str, words), *added]
  try:
    subprocess.run(command, check=True, capture_output=True, text=True)
  except FileNotFoundError as error:
    raise types.ConfigError(
      "expected the program openssl, found none; install it, or use your own"
      " certificates"
    ) from error
  except subprocess.CalledProcessError as error:
    raise types.ConfigError(
      f"openssl failed; version 3 is needed: {error.stderr.strip()[-300:]}"
    ) from error
