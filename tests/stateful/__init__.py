"""Test parts with state by random operations with tiny limits, each against a small model."""
