"""The database as a file: how changes reach the disk, and how it is copied.

``database`` has the one writer thread, which commits many changes with one sync, ``disk`` tells
how much space is left, ``backup`` copies the file, and ``clock`` measures durations over
restarts.
"""
