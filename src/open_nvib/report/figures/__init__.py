"""Figures of a report, each as the text of an SVG."""
