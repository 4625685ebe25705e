"""Tests of everything that has state, by random operations with tiny limits, each against a model of a few lines."""
