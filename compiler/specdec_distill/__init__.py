"""Training a small draft for a given champion, on text that the champion itself wrote. Needs PyTorch (the extra "distill")."""
