"""A real QPU, of any registered kind, as a device: its vendor's client, watched.

Whatever a vendor answers is checked before it counts, and a vendor that is slow, wrong or gone
stops its own jobs only.
"""
