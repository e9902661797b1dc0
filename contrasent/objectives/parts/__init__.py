"""What several objectives, or one large one, are made of; no objectives themselves."""
