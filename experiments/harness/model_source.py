"""Which model a verb reads, and how: the settings of conf/shared/model.yaml."""

from dataclasses import dataclass

import llada_jax as lj
from llada_jax.config import ONE_DEVICE, MeshConfig
from llada_jax.model.mesh import mesh_for


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Settings that verbs inherit. The comments are in conf/shared/model.yaml."""

    model: str
    dtype: str | None = None
    family: str | None = None
    ignore_keys: tuple[str, ...] = ()
    adapter: str | None = None

    def load(self, mesh: MeshConfig = ONE_DEVICE) -> lj.Model:
        """Loads the model, onto the mesh if it has several devices."""
        return lj.load(
            self.model,
            self.dtype,
            family=self.family,
            ignore_keys=self.ignore_keys,
            adapter=self.adapter,
            mesh=mesh_for(mesh),
        )
