//! Nothing: this package only turns on features of its dependencies.
