"""The page that tells how an exported folder gets to a phone."""

from collections.abc import Iterable
from pathlib import Path
from string import Template

from llada_jax.backend.exported.manifest import MANIFEST, Manifest

PUSH = "PUSH.md"
HEXAGON = {"SM8550": 73, "SM8650": 75, "SM8750": 79, "SM8850": 81}
"""Version of each chip's NPU, after which QNN's libraries are named."""
_TARGET = "/data/local/tmp/llada_jax"


def push_page(manifest: Manifest, folder: str) -> str:
    """Returns Markdown: the commands of `adb`, and what each file is for."""
    target = f"{_TARGET}/{folder}"

    def pushes(names: Iterable[str]) -> str:
        return "\n".join(f"adb push {name} {target}/" for name in names)

    bodies = [shard.file.name for shard in manifest.shards]
    by_soc: dict[str, list[str]] = {}
    for context in manifest.contexts:
        by_soc.setdefault(context["soc"], []).append(context["compiled"])
    special = {*bodies, *(context[name] for context in manifest.contexts
                          for name in ("file", "compiled"))}  # fmt: skip
    for_this_machine = ("calibration", "emulated-", "golden-")
    common = [f.name for f in manifest.files
              if f.name not in special and not f.name.startswith(for_this_machine)]  # fmt: skip
    page = _template("push_cpu.md").substitute(
        folder=folder,
        source=manifest.source,
        quant=manifest.settings.quant,
        target=target,
        common=pushes([*common, MANIFEST]),
        bodies=pushes(bodies),
    )
    if by_soc:
        page += _template("push_npu.md").substitute(manifest.contexts[0], target=target)
    for soc, names in by_soc.items():
        version = HEXAGON[soc]
        libraries = f"libQnnHtpV{version}Stub.so and libQnnHtpV{version}Skel.so"
        page += f"\n{soc}, with {libraries}:\n\n```\n{pushes(names)}\n```\n"
    return page


def _template(name: str) -> Template:
    return Template(Path(__file__).with_name(name).read_text())
