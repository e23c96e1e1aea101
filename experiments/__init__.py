"""The verbs, each a program: `python -m experiments.<verb>`.

What a verb needs of its surroundings is checked here, before JAX is imported: it would end the
process in C++.
"""

import os
import resource
import signal
import sys
from io import TextIOWrapper


def end_while_importing(*_: object) -> None:
    os.write(2, b"error: stopped by SIGINT, before anything began\n")
    os._exit(130)


def check_surroundings() -> None:
    """Ends the program with one line if it cannot run here. Reads the command line as UTF-8
    whatever the locale, and has characters that the output cannot show replaced."""
    if sys.stdout is None:
        sys.exit("error: standard output is closed; allowed: an open one, such as /dev/null")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    limit, cpus = resource.getrlimit(resource.RLIMIT_AS)[0], os.cpu_count() or 1
    needed = 1536 + 64 * cpus << 20  # measured: 1,230 MiB on 2 CPUs; each adds threads with stacks
    if limit != resource.RLIM_INFINITY and limit < needed:
        sys.exit(
            f"error: the limit of memory (ulimit -v) is {limit >> 10} KiB; allowed: {needed >> 10} "
            f"or more, which JAX needs on {cpus} CPUs"
        )
    for place, argument in enumerate(sys.argv):
        try:
            sys.argv[place] = os.fsencode(argument).decode("utf-8")
        except UnicodeDecodeError:
            sys.exit(f"error: {os.fsencode(argument)} is no UTF-8; allowed: text in UTF-8")


if sys.argv[0] == "-m":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_while_importing)
    check_surroundings()
