"""Constrains generated texts by a regular expression, a JSON schema or a list of choices."""
