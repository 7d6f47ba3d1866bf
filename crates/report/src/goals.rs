//! Goals, and the verdict on a measured value.

use std::borrow::Cow;

use conquest::MediumKind;
use serde::{Deserialize, Serialize};

/// The good side of a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sense {
    AtLeast,
    AtMost,
}

/// A goal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Goal {
    pub sense: Sense,
    pub required: f64,
    pub aim: f64,
    /// The unit: `x`, `s`, `B`.
    pub unit: Cow<'static, str>,
}

impl Goal {
    /// A factor to reach or exceed.
    pub const fn factor(required: f64, aim: f64) -> Goal {
        Goal { sense: Sense::AtLeast, required, aim, unit: Cow::Borrowed("x") }
    }

    /// A factor not to exceed.
    pub const fn at_most(required: f64, aim: f64) -> Goal {
        Goal { sense: Sense::AtMost, required, aim, unit: Cow::Borrowed("x") }
    }

    /// A quantity to reach or exceed.
    pub const fn at_least(required: f64, aim: f64, unit: &'static str) -> Goal {
        Goal { sense: Sense::AtLeast, required, aim, unit: Cow::Borrowed(unit) }
    }

    /// A quantity not to exceed.
    pub const fn quantity(required: f64, aim: f64, unit: &'static str) -> Goal {
        Goal { sense: Sense::AtMost, required, aim, unit: Cow::Borrowed(unit) }
    }

    fn met(&self, value: f64, bound: f64) -> bool {
        match self.sense {
            Sense::AtLeast => value >= bound,
            Sense::AtMost => value <= bound,
        }
    }

    /// A bound as the table shows it.
    pub fn show(&self, bound: f64) -> String {
        let sign = if self.sense == Sense::AtLeast { ">=" } else { "<=" };
        format!("{sign} {}", quantity(bound, &self.unit))
    }
}

/// A number with its unit, in a sensible number of digits.
pub fn quantity(value: f64, unit: &str) -> String {
    format!("{} {unit}", digits(value))
}

fn digits(value: f64) -> String {
    if value >= 100.0 || value.fract() == 0.0 && value.abs() < 1e6 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// At least as good as the aim.
    Aim,
    /// As good as required.
    Reached,
    Missed,
    /// Not measured, for the reason given.
    Skipped,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Aim => "aim reached",
            Verdict::Reached => "reached",
            Verdict::Missed => "MISSED",
            Verdict::Skipped => "skipped",
        }
    }
}

/// One row of the table of goals.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    pub what: String,
    /// The medium of the measured pool.
    pub medium: MediumKind,
    /// The absolute figures, as a text.
    pub measured: String,
    pub value: Option<f64>,
    /// The 90 % interval of the value, if it is the median of rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<[f64; 2]>,
    pub goal: Goal,
    pub verdict: Verdict,
    /// The reason for skipping it.
    pub reason: Option<String>,
}

impl Finding {
    /// Judges a value, or records the reason for its absence.
    pub fn judge(
        medium: MediumKind,
        what: impl Into<String>,
        goal: Goal,
        measured: String,
        value: Result<f64, String>,
    ) -> Finding {
        let what = what.into();
        match value {
            Ok(v) => {
                let verdict = match (goal.met(v, goal.aim), goal.met(v, goal.required)) {
                    (true, _) => Verdict::Aim,
                    (false, true) => Verdict::Reached,
                    (false, false) => Verdict::Missed,
                };
                Finding { what, medium, measured, value: Some(v), spread: None, goal, verdict, reason: None }
            }
            Err(reason) => {
                let verdict = Verdict::Skipped;
                Finding { what, medium, measured, value: None, spread: None, goal, verdict, reason: Some(reason) }
            }
        }
    }

    /// Does the spread of the rounds reach from one side of what is required to the other?
    pub fn is_hidden(&self) -> bool {
        self.spread.is_some_and(|[low, high]| low < self.goal.required && self.goal.required < high)
    }

    /// The value and its interval, as a text.
    pub fn result(&self) -> String {
        let unit = &self.goal.unit;
        match (self.value, self.spread) {
            (None, _) => "-".into(),
            (Some(value), None) => quantity(value, unit),
            (Some(value), Some([low, high])) => {
                format!("{} ({} to {})", quantity(value, unit), digits(low), digits(high))
            }
        }
    }

    /// The verdict, and its reason or its doubt, as a text.
    pub fn verdict(&self) -> String {
        match (&self.reason, self.is_hidden()) {
            (Some(reason), _) => format!("{}: {reason}", self.verdict.word()),
            (None, true) => format!("{}, within the spread", self.verdict.word()),
            (None, false) => self.verdict.word().into(),
        }
    }

    /// The same, skipped for this reason after all.
    pub fn skipped(self, reason: impl Into<String>) -> Finding {
        Finding { value: None, spread: None, verdict: Verdict::Skipped, reason: Some(reason.into()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(goal: &Goal, value: f64) -> Verdict {
        Finding::judge(MediumKind::Logged, "x", goal.clone(), String::new(), Ok(value)).verdict
    }

    #[test]
    fn verdicts_respect_the_sense() {
        let faster = Goal::factor(8.0, 15.0);
        assert_eq!(verdict(&faster, 20.0), Verdict::Aim);
        assert_eq!(verdict(&faster, 8.0), Verdict::Reached);
        assert_eq!(verdict(&faster, 7.9), Verdict::Missed);
        let smaller = Goal::quantity(160.0, 110.0, "B");
        assert_eq!(verdict(&smaller, 90.0), Verdict::Aim);
        assert_eq!(verdict(&smaller, 150.0), Verdict::Reached);
        assert_eq!(verdict(&smaller, 170.0), Verdict::Missed);
    }

    #[test]
    fn no_figure_is_never_a_success() {
        assert_eq!(verdict(&Goal::factor(1.0, 2.0), f64::NAN), Verdict::Missed);
        assert_eq!(verdict(&Goal::at_most(1.0, 2.0), f64::NAN), Verdict::Missed);
        let none =
            Finding::judge(MediumKind::Logged, "x", Goal::factor(1.0, 2.0), String::new(), Err("no root".into()));
        assert_eq!(none.verdict, Verdict::Skipped);
        let found = Finding::judge(MediumKind::Logged, "x", Goal::factor(1.0, 2.0), String::new(), Ok(3.0));
        assert_eq!(found.skipped("not cold").verdict, Verdict::Skipped);
    }
}
