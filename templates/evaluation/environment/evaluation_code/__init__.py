"""What evaluate.py is made of. Python 3.10 and later; only *_scoring.py and what they use need packages."""
