"""A model as a folder of files for phones and this machine: written, verified, and run."""
