"""srns."""
