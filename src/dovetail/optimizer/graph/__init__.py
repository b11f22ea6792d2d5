"""Join graphs: inputs, their rates and windows, and the selectivities between them."""
