//! What the library is linked with.
//!
//! - The unwinder of GCC. To load `libgcc_s` costs each process 100 µs or more: it asks the processor for its features, which traps in a virtual
//!   machine.
//! - Relocations in a table of its own (`src/relocate.rs`), where the linker can: LLVM's can, which Rust brings since 1.90.

use std::path::Path;
use std::process::Command;

const RELOCATIONS: [&str; 2] = ["--pack-dyn-relocs=relr", "--use-android-relr-tags"];

/// Does the linker know these arguments?
fn can_link(arguments: &[&str]) -> bool {
    let (Ok(rustc), Ok(dir)) = (std::env::var("RUSTC"), std::env::var("OUT_DIR")) else { return false };
    let source = Path::new(&dir).join("empty.rs");
    if std::fs::write(&source, "").is_err() {
        return false;
    }
    let mut command = Command::new(rustc);
    command.args(["--crate-type=cdylib", "--out-dir", &dir]).arg(&source);
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    command.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    command.args(std::env::var("RUSTC_LINKER").map(|linker| format!("-Clinker={linker}")));
    command.args(arguments.iter().map(|argument| format!("-Clink-arg=-Wl,{argument}")));
    command.output().is_ok_and(|done| done.status.success())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    // Else code that must do without constants has some, by which it compares, say.
    let is_optimised = std::env::var("OPT_LEVEL").is_ok_and(|level| level != "0");
    if is_optimised && can_link(&RELOCATIONS) {
        RELOCATIONS.iter().for_each(|argument| println!("cargo:rustc-link-arg-cdylib=-Wl,{argument}"));
        println!("cargo:rustc-link-arg-cdylib=-Wl,-init=conquest_preload_start");
    }
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let found = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output();
    let path = found.ok().and_then(|found| String::from_utf8(found.stdout).ok()).unwrap_or_default();
    // A compiler without it says the name alone; then the library is loaded.
    if let Some(dir) = Path::new(path.trim()).parent().filter(|dir| dir.is_absolute()) {
        println!("cargo:rustc-link-search=native={}", dir.display());
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
    }
}
