"""Commands around a bundle: run it, serve it, drive it in a browser."""
