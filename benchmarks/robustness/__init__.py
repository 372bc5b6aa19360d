"""Which scheme, basis, start and batch size hold on which data: a study over their whole product."""
