"""Steps of a training: by phase, over time, and by rank."""
