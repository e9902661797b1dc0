"""Speed against the peers, both sides in one run."""
