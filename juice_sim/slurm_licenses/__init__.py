"""Free capacity of Juice's pools as Slurm licenses, so that jobs wait in Slurm's queue. See docs/licenses.md."""
