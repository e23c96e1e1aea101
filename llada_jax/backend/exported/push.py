"""The page that tells how an exported folder gets to a phone."""

from llada_jax.backend.exported.manifest import Manifest

PUSH = "PUSH.md"
_TARGET = "/data/local/tmp/llada_jax"


def push_page(manifest: Manifest, folder: str) -> str:
    """Returns Markdown: the commands of `adb`, and what each file is for."""
    target = f"{_TARGET}/{folder}"
    contexts = [context["file"] for context in manifest.contexts]
    common = [f.name for f in manifest.files if f.name not in {*contexts, *_bodies(manifest)}]
    lines = [
        f"# {folder} on a phone",
        "",
        f"{manifest.source}, layers stored as {manifest.settings.quant}. `manifest.json` lists "
        "every file with its SHA-256, and under `contract` what the host passes and does per step.",
        "",
        "```",
        f"adb shell mkdir -p {target}",
        *(f"adb push {name} {target}/" for name in (*common, "manifest.json")),
        "```",
        "",
        "## CPU",
        "",
        "LiteRT 2.x runs the `.tflite` files through `CompiledModel`, one signature for each "
        "bucket. Give it a file for the packed weights, so that the next start maps them.",
        "",
        "```",
        *(f"adb push {name} {target}/" for name in _bodies(manifest)),
        "```",
    ]
    if contexts:
        lines += ["", "## NPU", "", *_npu(manifest, target)]
    return "\n".join([*lines, ""])


def _bodies(manifest: Manifest) -> list[str]:
    return [shard.file.name for shard in manifest.shards]


def _npu(manifest: Manifest, target: str) -> list[str]:
    version = manifest.contexts[0]["qnn_version"]
    lines = [
        f"The context binaries were compiled with QNN {version}; the phone needs a QNN runtime "
        "(libQnnHtp.so, libQnnSystem.so, and the skeleton library of its Hexagon) at least as new. "
        "It comes with Qualcomm's AI Runtime SDK, under Qualcomm's own terms. A graph is found by "
        "the `name` that the manifest gives for its signature. The head stays on the CPU "
        "(`head.tflite`). Nothing here was run on a phone: the binaries were emulated.",
        "",
    ]
    for soc in dict.fromkeys(context["soc"] for context in manifest.contexts):
        files = [context["file"] for context in manifest.contexts if context["soc"] == soc]
        lines += [f"{soc}:", "", "```", *(f"adb push {f} {target}/" for f in files), "```", ""]
    return lines[:-1]
