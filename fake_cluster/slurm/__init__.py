"""Slurm back ends behind one interface: `simulated` follows real Slurm's observed rules, `real` is a private Slurm."""
