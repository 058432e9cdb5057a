"""juice-sim: a simulated Juice Controller and its agents, wire-compatible with the real ones."""

__version__ = "0.1.0"
