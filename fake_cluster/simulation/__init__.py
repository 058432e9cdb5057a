"""The deterministic, virtual-time world: fuzzing with injected faults, and simulation at scale."""
