"""Lab 24, given: two tools, and dialogues about them to train an adapter on."""
