"""What ``sfq check`` and ``sfq run`` do with a file, for programs."""
