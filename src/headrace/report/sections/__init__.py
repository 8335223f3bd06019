"""The parts of the page, one module each, with a function that returns its `Section`, or None where there is nothing to show."""
