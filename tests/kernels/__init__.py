"""Every kernel against its NumPy twin, on every device, and row invariance: one batch of jobs a device, checked by many tests."""
