"""Figures of the documentation that no run is needed for, and those of docs/results/recipe.md."""
