"""An engine as bytes and as mapped arrays, and the checks when it is read back."""
