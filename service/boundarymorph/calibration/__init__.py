"""The probability that a person agrees, learned from a few judgements."""
