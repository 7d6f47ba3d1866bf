//! A build, by `make`, in a tree of C files that is copied there before: a generated one, or a configured one that the
//! user names.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::peer::beside_backlog;
use super::{memory, note, rounds, Options, USED};
use crate::command;
use crate::prelude::*;

const ROUNDS: usize = 5;
/// C files of a directory, functions of a file, and headers.
const PER_DIR: usize = 50;
const FUNCTIONS: u64 = 30;
const HEADERS: usize = 40;
/// The unit of the kernel's processor times: USER_HZ.
const TICKS: f64 = 100.0;

pub fn run(context: &Context, args: &Options) -> Outcome {
    let units = context.size(args.units, 6);
    let what = match &args.source {
        Some(dir) => format!("make in a copy of {}", dir.display()),
        None => format!("make of {units} C files"),
    };
    let time = Section::times("mramfs-5.5", format!("Figure 5.5, {what}"), "s").against(TMPFS.name);
    let time = time.noting("system: of make and the compilers, without what the server of a mount takes");
    let mut sections = [time.drawn(Plot::bars()), memory("mramfs-5.5-memory", &what)];
    let made = context.base.join("build.src");
    let ready = match &args.source {
        Some(dir) => Ok(dir.clone()),
        None => generate(&made, units).map(|()| made.clone()),
    };
    let ready = ready.and_then(|tree| {
        command::run(Command::new("make").arg("--version"))?;
        command::run(Command::new("cc").arg("--version"))?;
        Ok(tree)
    });
    match ready {
        Err(e) => sections.iter_mut().for_each(|section| section.skip("all", e.to_string())),
        Ok(tree) => {
            let backlog = context.mib(args.backlog, 1);
            rounds(context, ("build", ROUNDS), &mut sections, |peer, sections| round(&tree, peer, backlog, sections));
        }
    }
    let _ = std::fs::remove_dir_all(&made);
    Outcome { sections: sections.into(), findings: Vec::new() }
}

fn round(tree: &Path, peer: &Peer, backlog: u64, sections: &mut [Section]) -> Result<(), Error> {
    // Compilers need a mounted directory.
    let Ok(dir) = peer.dir() else { return Ok(()) };
    let empty = peer.used()?;
    let to = dir.join("tree");
    command::run(Command::new("cp").arg("-a").arg(tree).arg(&to))?;
    let ((total, system, used), compressed) = beside_backlog(peer, backlog, |end| {
        let (start, before) = (now(), system_time()?);
        command::run(Command::new("make").arg("-s").arg("-C").arg(&to))?;
        let (total, system) = (seconds_since(start), system_time()? - before);
        end()?;
        Ok((total, system, peer.used()?.saturating_sub(empty)))
    })?;
    sections[0].add(peer.who.name, "total", total);
    sections[0].add(peer.who.name, "system", system);
    sections[1].add(peer.who.name, USED, used as f64 / 1e6);
    note(&mut sections[0], compressed);
    Ok(())
}

/// Seconds that ended children have spent in the kernel.
fn system_time() -> Result<f64, Error> {
    let path = Path::new("/proc/self/stat");
    let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
    ended_in_kernel(&text).ok_or_else(|| Error::Wrong("/proc/self/stat has another form".into()))
}

/// The 17th field; the second may have spaces.
fn ended_in_kernel(stat: &str) -> Option<f64> {
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(14)?.parse().ok()?;
    Some(ticks as f64 / TICKS)
}

/// Writes a tree of `units` C files in directories, with headers that all of them include.
fn generate(dir: &Path, units: usize) -> Result<(), Error> {
    let write = |path: PathBuf, text: String| std::fs::write(&path, text).map_err(Error::file(&path));
    let make = |path: PathBuf| std::fs::create_dir_all(&path).map_err(Error::file(&path));
    make(dir.join("include"))?;
    for n in 0..HEADERS {
        let lines: String = (0..60).map(|m| format!("int h{n}_{m}(int a, const char *b);\n")).collect();
        write(dir.join(format!("include/h{n}.h")), format!("#ifndef H{n}\n#define H{n}\n{lines}#endif\n"))?;
    }
    let mut rng = Rng::new(5);
    for n in 0..units {
        let of = dir.join(format!("d{}", n / PER_DIR));
        if n % PER_DIR == 0 {
            make(of.clone())?;
        }
        write(of.join(format!("u{n}.c")), unit(n, &mut rng))?;
    }
    let rules = "SOURCES := $(wildcard d*/*.c)\nOBJECTS := $(SOURCES:.c=.o)\nlib.a: $(OBJECTS)\n\t@ar rc $@ $^\n\
                 %.o: %.c\n\t@cc -Iinclude -c -o $@ $<\n";
    write(dir.join("Makefile"), rules.into())
}

fn unit(n: usize, rng: &mut Rng) -> String {
    let mut text: String = (0..HEADERS).map(|h| format!("#include \"h{h}.h\"\n")).collect();
    text += "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n";
    for f in 0..FUNCTIONS {
        let (a, b) = (rng.below(1000), rng.below(1000));
        text += &format!(
            "int u{n}_{f}(int x, char *s)\n{{\n    int i, sum = {a};\n    for (i = 0; i < x; i++)\n        \
             sum += (i * {b}) ^ (int) strlen(s);\n    if (sum > {b})\n        printf(\"%s %d\\n\", s, sum);\n    \
             return sum + h{}_{}(sum, s);\n}}\n",
            rng.below(HEADERS as u64),
            rng.below(60)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_found_behind_any_name() {
        let stat = "17 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 250 15 16";
        assert_eq!(ended_in_kernel(stat), Some(2.5));
        assert_eq!(ended_in_kernel("17 (a"), None);
        assert!(system_time().expect("this process has one") >= 0.0);
    }

    #[test]
    fn the_tree_that_is_made_can_be_built() {
        if command::run(Command::new("cc").arg("--version")).is_err() {
            return eprintln!("skipped: no C compiler");
        }
        let dir = tempfile::tempdir().expect("a directory");
        generate(dir.path(), 3).expect("written");
        command::run(Command::new("make").arg("-s").arg("-C").arg(dir.path())).expect("it is built");
        assert!(dir.path().join("lib.a").exists() && dir.path().join("d0/u2.o").exists());
    }
}
