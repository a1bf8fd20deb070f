//! Rebuilds the library when a file is added to the folders that are compiled into it.
fn main() {
    println!("cargo::rerun-if-changed=models");
    println!("cargo::rerun-if-changed=traces");
}
