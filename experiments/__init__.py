"""The verbs, each a program: `python -m experiments.<verb>`."""

import os
import signal
import sys


def end_while_importing(*_: object) -> None:
    os.write(2, b"error: stopped by SIGINT, before anything began\n")
    os._exit(130)


if sys.argv[0] == "-m" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_while_importing)
