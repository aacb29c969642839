"""How good a model is: accuracy, F1, reliability; and what is fitted to that."""
