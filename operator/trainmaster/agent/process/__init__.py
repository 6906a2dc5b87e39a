"""What runs of an attempt on this worker: the setup line, the launcher, its ranks, what they print, how they end."""
