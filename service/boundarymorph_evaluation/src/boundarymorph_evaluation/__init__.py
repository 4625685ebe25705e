"""Compare selectors on pools with known scores, offline.

The service never imports this package.
"""
