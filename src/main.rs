//! The command-line program: parse, call, print the error, choose the exit code.
fn main() {}
