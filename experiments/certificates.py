"""Makes certificates and a token, as `seedx certificates` does."""

import sys

from seedx.app import certificates

if __name__ == "__main__":
  sys.exit(certificates.main())
