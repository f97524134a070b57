"""What happens at each step of a training, and to its compiled programs."""
