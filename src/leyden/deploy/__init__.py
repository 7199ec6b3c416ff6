"""A run's model as files that need none of our code, and what it says of a user's inputs."""
