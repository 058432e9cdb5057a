"""The pure core: no clock, no I/O, no threads, no randomness of its own; imports nothing but the standard library."""
