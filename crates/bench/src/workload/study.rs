//! The study of mramfs (Tables 3.1 to 4.1, Figures 3.1 to 4.3) on a tree of this machine, as `conquest profile` does it.

use study::scan::{self, Tree};

use crate::prelude::*;

const ROUNDS: usize = 5;

options! { Options {
    tree: dir = "/usr", "The tree to study";
    sample: count "MIB" = 64, "MiB of small files to compress, spread over the tree";
} }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let name = self.tree.display().to_string();
        context.progress.say(format!("study: looking at {name}"));
        let options = scan::Options { one_file_system: true };
        let tree = scan::scan(&self.tree, options, &mut |_| ()).map_err(Error::file(&self.tree))?;
        let tree = match context.quick {
            true => Tree {
                inodes: tree.inodes.into_iter().take(20_000).collect(),
                uids: tree.uids.into_iter().take(20_000).collect(),
                directories: tree.directories.into_iter().take(1_000).collect(),
                ..tree
            },
            false => tree,
        };
        let (sample, mut outcome) = (context.mib(self.sample, 4), Outcome::default());
        for round in 0..context.count(ROUNDS) {
            context.say_round("study", round, ROUNDS, &name);
            let found = study::study(&name, &tree, sample, &mut |_| ()).outcome();
            match round {
                0 => outcome = found,
                _ => outcome.sections.iter_mut().zip(found.sections).for_each(|(all, one)| all.add_all(&one)),
            }
        }
        Ok(outcome)
    }
}
