//! The items that nearly every workload needs.

pub use conquest::MediumKind;
pub use report::goals::{Finding, Goal};
pub use report::section::Plot;
pub use report::{Outcome, Section};
pub use rng::Rng;

pub use crate::clock::{now, per_second, seconds_since, us_per_op};
pub use crate::context::{Context, Workload};
pub use crate::error::{joined, Error};
pub(crate) use crate::options::options;
pub use crate::options::{wanted, Part};
pub use crate::peer::*;
pub(crate) use crate::place::on_place;
pub use crate::place::{name, InProcess, Mounted, Name, Place};
pub use crate::setting::{Grounds, InSettings, Setting, Sizes};

pub const MIB: u64 = 1 << 20;
