"""Routes, one file a resource. Each has a `router`, and takes the server's `Service` from the app's state."""
