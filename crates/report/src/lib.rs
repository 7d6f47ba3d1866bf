//! Measured figures: every round as JSON, tables for a reader, plots as SVG, and goals.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`section`] | the rounds of one workload, a whole report, and the machine that made it |
//! | [`goals`] | goals and results |
//! | [`cells`] | tables of texts, aligned or for a page |
//! | [`table`] | sections and results as text |
//! | [`plot`] | sections as SVG |
//! | [`stats`] | medians, their intervals, and percentiles |

#![forbid(unsafe_code)]

pub mod cells;
pub mod goals;
pub mod plot;
pub mod section;
pub mod stats;
pub mod table;

pub use section::{Machine, Outcome, Report, Row, Section, Series, Skipped};
