"""What was kept from the modelling until it was done: the vendor's passes of other models."""

from functools import partial

from experiments.reproduce.bands import band
from experiments.reproduce.chapter import Chapter, chapter, modelled
from llada_jax.phone.graphs import graphs_of
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.single_steps import one_pass
from llada_jax.phone.system import System
from llada_jax.phone.uncertainty import with_uncertainty


def held_out(world: PublishedTasks) -> Chapter:
    """Scores AI Hub's models on four phones: a pass over a prompt, and one of a single row."""
    figures, rows = world.read("held_out"), []
    for each in figures["models"]:
        model = graphs_of(each["shape"]).model.replace(**each["changes"])
        profile = load_profile(each["soc"])
        wanted = {each["rows"]: each["pass_ms"], 1: 1e3 / each["tokens_per_second"]}
        for count, milliseconds in wanted.items():
            graphs = graphs_of(model, "int4")
            price = partial(one_pass, graphs, rows=count, context=each["context"])
            found = with_uncertainty(profile, price, System(kernels="vendor").uses)
            ms = 1e3 * found.seconds
            rows.append(
                modelled(f"held_out/{each['soc']}/{each['name']}/rows{count}", ms, "ms",
                          reference=milliseconds, source=figures["source"], fitted=False,
                          band=band(ms, found.relative, profile.session.npu_spread))
            )  # fmt: skip
    return chapter("held_out", rows)
