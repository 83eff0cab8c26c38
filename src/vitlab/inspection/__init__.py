"""What a model learned and where it looks: attention captured by hooks, and pure analyses over what was captured."""
