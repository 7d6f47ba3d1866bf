//! Runs the requested workload, or all that are published.

use std::fs::File;

use report::{plot, table, Outcome, Report};

use crate::args::{Args, What};
use crate::context::Context;
use crate::error::Error;
use crate::publish::{self, measure, writable};
use crate::published::WORKLOADS;
use crate::supervise::Base;

/// Runs `args`, prints the result and writes the JSON.
pub fn run(args: &Args) -> Result<(), Error> {
    let common = &args.common;
    // First of all: the user should learn of an unwritable file now rather than after the run, and the run may mount
    // over the directory of the file.
    let json = common.json.as_ref().map(|file| File::create(file).map_err(Error::file(file))).transpose()?;
    let plots = common.plots.as_deref();
    plots.map_or(Ok(()), writable)?;
    let base = Base::take()?;
    let context = Context::new(common, &base);
    let blank = Report::begin(context.quick);
    context.progress.print(&blank.machine.describe());
    let outcome = match &args.what {
        What::All => all(&context)?,
        What::Publish(publish) => publish::run(&context, publish)?,
        what => what.workload().map_or(Ok(Outcome::default()), |workload| measure(workload, &context))?,
    };
    if !outcome.findings.is_empty() {
        context.progress.print(&table::findings(&outcome.findings, context.quick));
    }
    if let Some(dir) = plots {
        plot::write(dir, &outcome).map_err(Error::io("the plots"))?;
    }
    let report = Report { outcome, failures: context.into_failures(), ..blank };
    if let Some(file) = json {
        report.write(file).map_err(Error::io("the JSON report"))?;
    }
    if report.failures.is_empty() {
        Ok(())
    } else {
        Err(Error::Failed(report.failures))
    }
}

/// Runs everything that is published. A workload that fails is reported at the end; the others go on.
fn all(context: &Context) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    for (name, line) in WORKLOADS {
        let what = What::parse(line)?;
        let Some(workload) = what.workload() else { continue };
        match measure(workload, context) {
            Ok(one) => outcome.extend(one),
            Err(e) => context.failed(name, &e),
        }
    }
    Ok(outcome)
}
