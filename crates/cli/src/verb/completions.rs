//! `conquest completions`: the script with which a shell completes our commands.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::failure::Result;
use crate::{say, Cli};

/// Print the completions for a shell.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  conquest completions bash > /usr/share/bash-completion/completions/conquest\n  \
    conquest completions zsh > ~/.zfunc/_conquest\n  conquest completions fish > ~/.config/fish/completions/conquest.fish")]
pub struct Args {
    shell: Shell,
}

pub fn run(args: &Args) -> Result<()> {
    say(String::from_utf8_lossy(&text(args.shell)).trim_end())
}

pub fn text(shell: Shell) -> Vec<u8> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "conquest", &mut out);
    out
}
