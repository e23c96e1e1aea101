"""The command-line programs of the project, its verbs: `python -m experiments.<verb>`.

Python imports this package before any verb, so the process's surroundings are checked here: an
open output, enough memory, a command line in UTF-8. JAX, imported later, would abort in C++ if one
of them were missing, without a message that helps. Then the process starts again with huge pages.
"""

import os
import resource
import signal
import sys
from io import TextIOWrapper


def exit_on_interrupt(*_: object) -> None:
    os.write(2, b"error: stopped by SIGINT, before anything began\n")
    os._exit(130)


def check_surroundings() -> None:
    """Exits with one line if the program cannot run here. Decodes the command line as UTF-8 in
    any locale, and makes the output escape characters that it cannot encode."""
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
    for index, argument in enumerate(sys.argv):
        try:
            sys.argv[index] = os.fsencode(argument).decode("utf-8")
        except UnicodeDecodeError:
            sys.exit(f"error: {os.fsencode(argument)} is not UTF-8; allowed: text in UTF-8")


def use_huge_pages() -> None:
    """Starts the program again in this process, with huge pages for large arrays.

    XLA's programs allocate their temporary arrays in each call, and with pages of 4 KiB the kernel
    takes up to a fifth of a training step to map them. glibc reads the setting only at the start of
    a process; another setting of GLIBC_TUNABLES is left alone.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if sys.argv[0] == "-m":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_on_interrupt)
    check_surroundings()
    use_huge_pages()
