//! The workloads, and running the ones that are asked for.

use std::fs::File;
use std::io::Write;

use crate::args::{defaults, Args, What};
use crate::context::Context;
use crate::error::Error;
use crate::report::{Machine, Outcome, Report};
use crate::supervise::Base;
use crate::table;

mod bigdir;
mod check;
mod durable;
mod memory;
mod open;
mod plan;
mod postmark;
mod program;
pub mod scale;
mod smallfile;
mod tree;

/// Runs what `args` asks for, prints it and writes the JSON.
pub fn run(args: &Args) -> Result<(), Error> {
    // First of all: a file that cannot be written is better known now than after the run, and the run may
    // cover the place where it lies.
    let json = args.json.as_ref().map(|file| File::create(file).map_err(Error::file(file))).transpose()?;
    let base = Base::take()?;
    let context = Context::new(args, &base)?;
    let machine = Machine::this();
    context.progress.print(&machine.describe());
    let outcome = measure(&args.what, &context)?;
    if !outcome.findings.is_empty() {
        context.progress.print(&table::findings(&outcome.findings, context.quick));
    }
    let quick = context.quick;
    let failures = context.into_failures();
    if let Some(file) = json {
        write_json(file, machine, outcome, quick, failures.clone())?;
    }
    if failures.is_empty() {
        Ok(())
    } else {
        Err(Error::Failed(failures))
    }
}

/// Runs one workload, or all, printing each one's tables as soon as they are known.
fn measure(what: &What, context: &Context) -> Result<Outcome, Error> {
    let outcome = match what {
        What::Smallfile(args) => smallfile::run(context, args)?,
        What::Scale(args) => scale::run(context, args)?,
        What::Postmark(args) => postmark::run(context, args)?,
        What::Bigdir(args) => bigdir::run(context, args)?,
        What::Open(args) => open::run(context, args)?,
        What::Fsck(args) => check::run(context, args)?,
        What::Memory(args) => memory::run(context, args)?,
        What::Durable(args) => durable::run(context, args)?,
        What::All => return all(context),
        // Answered before a run is set up.
        What::Worker(_) => Outcome::default(),
    };
    for section in &outcome.sections {
        context.progress.print(&table::section(section));
    }
    Ok(outcome)
}

/// Everything. A workload that fails as a whole is told of at the end; the others go on.
fn all(context: &Context) -> Result<Outcome, Error> {
    let workloads = [
        What::Smallfile(defaults()),
        What::Scale(defaults()),
        What::Open(defaults()),
        What::Fsck(defaults()),
        What::Memory(defaults()),
        What::Bigdir(defaults()),
        What::Postmark(defaults()),
        What::Durable(defaults()),
    ];
    let mut outcome = Outcome::default();
    for what in &workloads {
        match measure(what, context) {
            Ok(one) => outcome.extend(one),
            Err(e) => context.failed(&format!("{what:?}"), &e),
        }
    }
    Ok(outcome)
}

fn write_json(
    mut file: File,
    machine: Machine,
    outcome: Outcome,
    quick: bool,
    failures: Vec<String>,
) -> Result<(), Error> {
    let report =
        Report { program: "conquest bench", version: env!("CARGO_PKG_VERSION"), quick, machine, outcome, failures };
    let text = serde_json::to_string_pretty(&report).map_err(|e| Error::io("the JSON report")(e.into()))?;
    writeln!(file, "{text}").map_err(Error::io("the JSON report"))
}
