"""What all Python tests share."""

from __future__ import annotations

import signal

# A shell that starts the tests in the background lets them ignore SIGINT, and every process under test would inherit
# that: those that must end on Ctrl-C could not be asked to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
