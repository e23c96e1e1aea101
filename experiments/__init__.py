"""The verbs, each a program (`python -m experiments.<verb>`), and SIGINT while it imports."""

import os
import shlex
import signal
import sys


def end_while_importing(*_: object) -> None:
    command = shlex.join(["python", *sys.orig_argv[1:]])
    os.write(2, f"error: stopped by SIGINT\nresume with: {command}\n".encode())
    os._exit(130)


if sys.argv[0] == "-m" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_while_importing)
