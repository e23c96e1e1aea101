"""Files: written whole or not at all, locked, hashed, and kept inside their folder."""
