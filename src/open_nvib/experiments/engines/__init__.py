"""Where cells run: one after another in this process, in several processes, or on a Ray cluster."""

from open_nvib.experiments.engines.engine import Engine
from open_nvib.experiments.engines.processes import Processes
from open_nvib.experiments.engines.ray import Ray
from open_nvib.experiments.engines.serial import Serial

__all__ = ["Engine", "Processes", "Ray", "Serial"]
