"""Hangs: ranks that live but make no progress, what they wait for, and which of them all the others wait for."""
