"""From files to answers: what a trained model says of pictures."""
