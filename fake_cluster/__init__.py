"""Fake clusters to run the simulated Juice service in: Ray's fake multi-node clusters and Slurm, simulated and real."""
