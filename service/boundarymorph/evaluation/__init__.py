"""Does it choose better sets? Selectors side by side on fixed pools with known scores. Offline; the service never
imports this package."""
