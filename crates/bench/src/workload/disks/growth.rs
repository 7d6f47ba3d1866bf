use super::Bench;
use crate::report::Outcome;
pub fn run(_: &Bench<'_>) -> Outcome {
    Outcome::default()
}
