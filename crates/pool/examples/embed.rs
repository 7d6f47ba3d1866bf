//! A program that embeds Conquest: a mailbox. Each message is a file that appears whole or not at all; every
//! process that opens the pool sees it at once. Killed at any moment, the program loses no message that it has
//! acknowledged.
//!
//! ```sh
//! cargo run --release -p conquest-pool --example embed -- /tmp/mailbox deliver "Dear reader, ..."
//! cargo run --release -p conquest-pool --example embed -- /tmp/mailbox list
//! cargo run --release -p conquest-pool --example embed -- /tmp/mailbox read NAME
//! ```

use std::path::Path;

use conquest::node::Rename;
use conquest::path::View;
use conquest::{Caller, Durability, FormatOptions, OpenOptions, Pool};

/// Bytes of persistent RAM of a new mailbox.
const SIZE: u64 = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [dir, "deliver", text] => println!("kept as {}", deliver(&open(dir)?, text.as_bytes())?),
        [dir, "list"] => list(&open(dir)?)?,
        [dir, "read", name] => println!("{}", String::from_utf8_lossy(&read(&open(dir)?, name)?)),
        _ => return Err("usage: embed DIR deliver TEXT | list | read NAME".into()),
    }
    Ok(())
}

/// Opens the mailbox, or makes it. Opening undoes what a killed process left half done.
fn open(dir: &str) -> conquest::Result<Pool> {
    let dir = Path::new(dir);
    if !Pool::exists(dir) {
        Pool::format(dir, &FormatOptions::sized(SIZE))?;
    }
    let pool = Pool::open(dir, &OpenOptions { durability: Durability::Strict, ..OpenOptions::default() })?;
    let view = View::new(&pool, Caller::current());
    for folder in ["new", "tmp"] {
        match view.mkdir(folder, 0o700) {
            Err(e) if e.errno() != rustix::io::Errno::EXIST => return Err(e),
            _ => {}
        }
    }
    Ok(pool)
}

/// Writes a message aside and then gives it its name, in one step: no reader ever sees a part of it, however
/// long it is. The message is durable on return; there is nothing to sync.
fn deliver(pool: &Pool, text: &[u8]) -> conquest::Result<String> {
    let view = View::new(pool, Caller::current());
    let draft = format!("tmp/{}", std::process::id());
    view.create(&draft, 0o600)?.write_all_at(text, 0)?;
    for number in 1u64.. {
        let name = format!("{number:06}");
        // Another process may take the same number at the same time: one of the two gets an error.
        match view.rename(&draft, format!("new/{name}"), Rename::NoReplace) {
            Err(e) if e.errno() == rustix::io::Errno::EXIST => {}
            done => return done.map(|()| name),
        }
    }
    unreachable!("numbers do not end")
}

fn list(pool: &Pool) -> conquest::Result<()> {
    let view = View::new(pool, Caller::current());
    let mut names = view.read_dir("new")?.map(|entry| Ok(entry?.file_name())).collect::<conquest::Result<Vec<_>>>()?;
    names.sort();
    for name in names {
        let attr = view.stat(Path::new("new").join(&name))?;
        println!("{} {:>8} bytes", name.to_string_lossy(), attr.size);
    }
    Ok(())
}

fn read(pool: &Pool, name: &str) -> conquest::Result<Vec<u8>> {
    View::new(pool, Caller::current()).read(format!("new/{name}"))
}
