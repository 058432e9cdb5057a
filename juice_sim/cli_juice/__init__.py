"""`juice`: the stand-in for the command of Juice's client."""
