"""The database as a file: how changes reach the disk, and how it is copied.

``database`` has the one writer thread, which commits many changes with one sync; ``disk``
reports the free space, ``backup`` copies the file, and ``clock`` measures durations across
restarts.
"""
