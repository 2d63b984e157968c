"""The page ``GET /``, and the activity it shows."""
