"""A file for each tab: `add(page)` puts it there."""
