"""Learn the probability that a person agrees from a few judgements."""
