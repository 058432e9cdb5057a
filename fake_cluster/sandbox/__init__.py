"""A sandbox: controller, agents, hooks and Slurm that stay up in the background, to be played with from a shell."""
