//! Tests that the examples in help texts and pages are existing commands.

use clap::{Command, CommandFactory, Parser};

use super::Cli;

/// The ends of a command in a line: a comment, or another program.
const ENDS: [&str; 6] = ["  ", " #", " | ", " && ", " (", " > "];

/// The words of the command in a line, if it is a command of ours.
fn words(line: &str) -> Option<Vec<&str>> {
    let line = line.trim_start().strip_prefix("conquest ")?;
    let end = ENDS.iter().filter_map(|end| line.find(end)).min().unwrap_or(line.len());
    Some(["conquest"].into_iter().chain(line[..end].split_whitespace()).collect())
}

fn help(command: &Command, into: &mut Vec<String>) {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    into.extend(text.lines().map(String::from));
    command.get_subcommands().for_each(|sub| help(sub, into));
}

/// The commands in a page's examples for a shell, one after the other.
fn shell(page: &str) -> Vec<String> {
    let path = format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let examples = text.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n"));
    examples.flat_map(str::lines).flat_map(|line| line.split(" && ")).map(String::from).collect()
}

#[test]
fn examples_are_commands_that_there_are() {
    let mut lines = [shell("README.md"), shell("docs/GUIDE.md")].concat();
    help(&Cli::command(), &mut lines);
    let commands: Vec<Vec<&str>> = lines.iter().filter_map(|line| words(line)).collect();
    let wrong: Vec<String> = commands
        .iter()
        .filter_map(|words| Cli::try_parse_from(words).err().map(|e| format!("{}: {e}", words.join(" "))))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(commands.len() > 100, "{} examples were seen", commands.len());
}
