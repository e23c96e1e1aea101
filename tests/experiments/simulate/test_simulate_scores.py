"""`experiments.simulate` with the head on the NPU."""

import llada_jax as lj
from experiments.simulate import __main__ as simulate
from llada_jax.phone.system import System
from llada_jax.phone.workload import blockwise
from tests.phone.small import PHONE, SHAPE


def rows_of(system: System) -> dict[str, float]:
    phone, workload = lj.Phone(PHONE, system), blockwise(8, 32)
    rows = simulate.on_phone(phone, [workload], phone.time(workload, SHAPE), SHAPE)
    return {row.name.removeprefix("SM8750/"): row.value for row in rows}


def test_a_head_on_the_npu_takes_its_time_and_room():
    rows, on_cpu = rows_of(System(scores_on="npu")), rows_of(System())
    assert rows["part/scores"] > 0 and "part/scores" not in on_cpu
    assert rows["must_be_mapped"] > on_cpu["must_be_mapped"]
