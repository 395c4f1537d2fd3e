"""Rows of configurations × seeds: trained, measured, and kept in a directory each. Needs the extra `text`."""
