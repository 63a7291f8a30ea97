"""The specdec compiler: a recipe in, a bundle (plan, WGSL, WASM, weights) out."""

__version__ = "0.1.0"
