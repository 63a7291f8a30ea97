"""Other people's runtimes, measured beside ours: installed into the cache folder on first use, never part of set-up."""
