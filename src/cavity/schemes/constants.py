"""Numbers that schemes and backends in plain Python share with their compiled forms."""

# How often the damping of an update is halved before it is refused: to a 16th, as the least damping of `ep.guard`.
UPDATE_HALVINGS = 4

# Line searches: the share of the promised descent that a step must keep (Armijo's rule), and the most halvings.
ARMIJO, HALVINGS = 1e-4, 30
# Rounding error of a sum of costs, as a share of it: smaller differences decide nothing.
ROUNDING = 1e-13

# Recentred stars, in shares of an arm: a change that counts as none; the shortest arm against that of the first star,
# for costs that jump; what is left of an arm whose end has no finite cost.
SAME_ARM, SHORTEST_ARM, RETREAT = 0.1, 1e-6, 0.25
# Stars kept for shortening arms: enough to take one from the longest to the shortest (0.25**10 = 1e-6).
RESERVED_STARS = 10

# Moments of a star: an estimated variance below the first share of the second moment is the rounding error of its
# subtraction; below the second, in variances of the cavity, the arms have no weight at all.
LEAST_VARIANCE, LEAST_SQUARE = 1e-12, 1e-150
