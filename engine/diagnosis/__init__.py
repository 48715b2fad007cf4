"""What the unchanged job spends its time on, how noisy it is, and what that lets us tell."""
