"""Files: written atomically, locked, hashed, and kept inside their folder."""
