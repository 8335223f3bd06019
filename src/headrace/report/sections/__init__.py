"""The parts of the page, one module each, each with a function that returns its `Section` or, with nothing to show, None."""
