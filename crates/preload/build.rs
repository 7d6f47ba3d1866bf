//! Links the unwinder of GCC into the library. To load `libgcc_s` costs each process 100 µs or more: it asks the processor for its features,
//! which traps in a virtual machine.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let found = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output();
    let path = found.ok().and_then(|found| String::from_utf8(found.stdout).ok()).unwrap_or_default();
    // A compiler without it says the name alone; then the library is loaded.
    if let Some(dir) = Path::new(path.trim()).parent().filter(|dir| dir.is_absolute()) {
        println!("cargo:rustc-link-search=native={}", dir.display());
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
    }
}
