"""Fine-tunes a model on a file of one's own, and exports it in the Hugging Face layout.

    python -m experiments.fine_tune model=small file=chats.jsonl hydra.run.dir=outputs/mine
    python -m experiments.fine_tune model=path/to/LLaDA-8B-Instruct dtype=int8 file=chats.jsonl
    python -m experiments.fine_tune file=chats.jsonl test_file=others.jsonl train.lora=null

Each line is `{"messages": [...]}` or `{"prompt": ..., "completion": ...}` (docs/scale.md). By
default adapters are trained (LoRA), beside matrices that may be int8 or int4, and merged into them
at the end. The same command resumes a run that was stopped, from its last checkpoint.

The run folder gets, besides what every run writes, `training.json`, `checkpoints/` and the model,
`model/`; where there is a `test_file`, `results.json` says how many of its answers are given word
for word.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import llada_jax as lj
from experiments.harness.model_source import ModelSource
from experiments.harness.results import ResultRow, share_row
from experiments.harness.run import Run, command_that_goes_on, entry_point
from experiments.train.resume import TRAINING, Training
from llada_jax.checkpoint import fingerprint, load_params, read_tokenizer
from llada_jax.config import ONE_DEVICE, MeshConfig, TrainConfig, require, require_counts
from llada_jax.model.mesh import mesh_for
from llada_jax.sampler.config import SamplerConfig
from llada_jax.training.data import Example
from llada_jax.training.loop import read_metrics, require_steps, train
from llada_jax.training.model_folder import export_model
from llada_jax.training.sft import read_examples, shuffled
from llada_jax.training.state import trained_params


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig(ModelSource):
    """What is tuned on what. The comments are in conf/fine_tune.yaml."""

    file: str
    test_file: str | None = None
    train: TrainConfig
    mesh: MeshConfig = ONE_DEVICE
    sampler: SamplerConfig
    batch_size: int = 16

    def __post_init__(self) -> None:
        require_counts(self, "batch_size")
        require(
            self.train.lora is not None or self.dtype == "float32",
            f"dtype is {self.dtype!r} without train.lora; allowed: float32, in which parameters "
            "are trained",
        )


def fine_tune(config: FineTuneConfig, run: Run) -> None:
    """Checks all that is given, trains from the last checkpoint of the folder, and exports."""
    mesh = mesh_for(config.mesh)
    model, parent, folder = load_params(
        config.model,
        config.dtype,
        config.family,
        mesh=mesh,
        ignore_keys=config.ignore_keys,
        adapter=config.adapter,
    )
    tokenizer, longest = read_tokenizer(folder), config.train.max_gen_length
    if tokenizer is None:
        raise ValueError(f"model {config.model!r} has no tokenizer; allowed: one that has")
    examples = read_examples(config.file, tokenizer, model, longest)
    asked = config.test_file and read_examples(config.test_file, tokenizer, model, longest)
    training = _training(config).resumed(run.folder)
    require_steps(run.folder, config.train)
    run.begin()
    run.write(TRAINING, training.as_json())
    source = shuffled(examples, config.train.seed)
    state = train(run.folder, model, config.train, source, parent=parent, mesh=mesh)
    params = trained_params(state.params, config.train, parent)
    card = _card(config, len(examples), training.commands)
    metrics = read_metrics(run.folder)
    export_model(run.folder / "model", model, params, tokenizer, card, metrics)
    tuned = run.of(lj.load(run.folder / "model"))
    run.finish([_exact_match(tuned, asked, config)] if asked else [])


def _training(config: FineTuneConfig) -> Training:
    """Returns what decides the run: settings, the model and the file by their content."""
    content = {
        "model": fingerprint(config.model, config.adapter),
        "dtype": config.dtype,
        "file": sha256(Path(config.file).read_bytes()).hexdigest(),
        "train": asdict(config.train),
    }
    return Training.of(content, command_that_goes_on("fine_tune"))


def _exact_match(model: lj.Model, asked: Sequence[Example], config: FineTuneConfig) -> ResultRow:
    """Counts the answers that the model gives word for word."""
    right = 0
    for start in range(0, len(asked), config.batch_size):
        part = asked[start : start + config.batch_size]
        found = lj.generate(model, [list(each.prompt) for each in part], config.sampler)
        pairs = zip(part, found.answers, strict=True)
        right += sum(list(each.answer[:-1]) == list(map(int, ids)) for each, ids in pairs)
    return share_row("test_file/exact_match", right, len(asked), "of answers")


def _card(config: FineTuneConfig, examples: int, commands: Sequence[str]) -> str:
    lora, lines = config.train.lora, "".join(f"    {command}\n" for command in commands)
    how = f"adapters of rank {lora.rank} (LoRA), merged" if lora else "all of its parameters"
    told = f"{Path(config.model).name}, fine-tuned on {examples:,} examples of"
    return f"# A model\n\n{told} `{Path(config.file).name}`: {how}.\n\n{lines}"


main = entry_point("fine_tune", fine_tune, FineTuneConfig)
