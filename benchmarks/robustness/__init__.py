"""How often the posterior is right: the defaults and products of Gaussians, over data, scalings and losses."""
