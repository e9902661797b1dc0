"""Training files made from labelled pairs, caption groups and paraphrases."""
