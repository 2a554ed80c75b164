"""Documents -> masked text -> chunks, with rev."""
