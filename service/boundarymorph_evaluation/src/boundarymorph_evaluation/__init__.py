"""Selectors side by side on pools with known scores, offline. The service never imports this package."""
