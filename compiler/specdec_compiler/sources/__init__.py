"""Where models come from: GGUF files and Hugging Face folders, each read into a ModelSpec."""
