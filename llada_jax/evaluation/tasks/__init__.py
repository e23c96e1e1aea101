"""Tasks that need no download: seeded generators with exact verifiers."""
