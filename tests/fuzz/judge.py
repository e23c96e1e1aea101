"""One case: loads a damaged artifact under watch, and returns the outcome."""

import hashlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

CLEAR_ERROR, EQUAL, STATED, RAW = "clear error", "equal result", "as stated", "flipped weights"
UNCLEAR, OTHER, LAX = "unclear error", "other result", "laxer than safetensors"
CRASH, HANG, OUTSIDE, CODE = "crash", "hang", "outside touched", "code run"
GOOD = (CLEAR_ERROR, EQUAL, STATED, RAW)
BAD = (UNCLEAR, OTHER, LAX, CRASH, HANG, OUTSIDE, CODE)

CPU_SECONDS = 10
MEMORY_BYTES = 24 << 30
LONGEST_MESSAGE = 2000
_CLEAR = (ValueError, FileNotFoundError, NotADirectoryError, IsADirectoryError)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink")
_STARTS = ("os.posix_spawn", "subprocess.Popen")
_RUNS = ("os.system", "os.exec", "pickle.find_class", *_STARTS)


class Hang(BaseException):
    """A case took more than its time."""


class Verdict(NamedTuple):
    outcome: str
    detail: str = ""


@dataclass
class Watch:
    """Records what Python code touches while a case runs. An audit hook cannot be removed."""

    root: Path
    """The folder of all cases. A case may only touch its subfolder."""
    folder: Path | None = None
    outside: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    def install(self) -> None:
        sys.dont_write_bytecode = True
        sys.addaudithook(self._hear)
        signal.signal(signal.SIGPROF, _hang)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            nameless = os.path.isdir(args[0])  # a temporary file that no folder lists
            self._touched(args[0], bool(args[2] & _WRITING) and not nameless)
        elif event in _CHANGES:
            for path in args[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    self._touched(path, True)
        elif event in _RUNS and not (event in _STARTS and _our_own(args)):
            self.code.append(f"{event} {str(args)[:80]}")

    def _touched(self, path: Any, writes: bool) -> None:
        assert self.folder is not None
        if not writes and _sought_by_a_traceback(os.fsdecode(path)):
            return
        full = Path(os.path.abspath(os.fsdecode(path)))
        harmless = not writes and not full.is_relative_to(self.root)
        if not full.is_relative_to(self.folder) and not harmless and str(full) != os.devnull:
            self.outside.append(f"{'writes' if writes else 'reads'} {os.fsdecode(path)[-80:]}")


def _sought_by_a_traceback(path: str) -> bool:
    """Whether a traceback looks for this path as a source that does not exist: of code without one
    (`<string>`), or of a package compiled elsewhere (`uvloop/loop.pyx`), which Python looks for in
    the current folder first. An existing file counts as touched, whatever its name."""
    parts = Path(path).parts
    compiled = Path(path).suffix in (".pyx", ".pxd", ".pxi") and ".." not in parts
    of_a_package = len(parts) > 1 and parts[0] in sys.modules and compiled
    return path.startswith("<") or (of_a_package and not os.path.lexists(path))


def _our_own(process: tuple[Any, ...]) -> bool:
    """Whether it is the package's child process for loading files that may crash or hang."""
    program, arguments = str(process[0]), list(map(str, process[1]))
    return program == sys.executable and any("llada_jax" in each for each in arguments[1:4])


def _hang(*_: Any) -> None:
    raise Hang


def judge(
    watch: Watch, folder: Path, load: Callable[[], Any], valid: str, *, states: bool, raw: bool
) -> Verdict:
    """Runs `load`, which may only touch `folder`, and returns the verdict.

    `valid` is the digest of the undamaged artifact. The damage may have made it another valid
    artifact (`states`) or changed only weights (`raw`).
    """
    canaries = _files(watch.root / "outside")
    watch.folder, watch.outside, watch.code = folder, [], []
    try:
        try:
            # The timer repeats, since Python drops exceptions raised during garbage collection.
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS, 1)
            found = digest(load())
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        verdict = Verdict(EQUAL if found == valid else STATED if states else OTHER)
        if verdict.outcome == OTHER and raw:
            verdict = Verdict(RAW)
    except Hang:
        verdict = Verdict(HANG, f"more than {CPU_SECONDS} CPU-seconds")
    except BaseException as error:
        verdict = _of_error(error)
    finally:
        watch.folder = None
    if watch.code or (watch.root / "outside" / "ran").exists():
        return Verdict(CODE, "; ".join(watch.code))
    if watch.outside or _files(watch.root / "outside") != canaries:
        return Verdict(OUTSIDE, "; ".join(watch.outside[:2]))
    return verdict


def _of_error(error: BaseException) -> Verdict:
    """One sentence in the right exception is clear; an internal exception that escaped is not."""
    message = str(error)
    exits = isinstance(error, SystemExit) and message.startswith("error: ")
    if (exits or isinstance(error, _CLEAR)) and 0 < len(message) < LONGEST_MESSAGE:
        if type(error) not in (UnicodeDecodeError, UnicodeEncodeError):
            return Verdict(CLEAR_ERROR, message)
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "llada_jax" in frame.filename or "expe" in frame.filename]
    frame = (ours or frames)[-1]
    kind = "MemoryError" if isinstance(error, MemoryError) else type(error).__name__
    where = f"{Path(frame.filename).name}:{frame.name}"
    return Verdict(UNCLEAR, f"{kind} in {where}: {message[:80]!r}")


def digest(value: Any) -> str:
    """Returns a digest of everything that was loaded: bytes of arrays, `repr` of the rest."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(value):
        if isinstance(leaf, jax.Array | np.ndarray):
            array = np.asarray(leaf)
            found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        else:
            found.update(repr(leaf).encode(errors="surrogatepass"))
    return found.hexdigest()


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
