"""Terms of a model: columns of its design and the prior of their coefficients."""
