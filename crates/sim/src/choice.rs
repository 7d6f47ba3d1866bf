//! The outcome for values in doubt at a crash.

/// The outcome for the words, or the sectors, in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All lost.
    None,
    /// All kept.
    All,
    /// The combination with this number, of those that [`subsets`](crate::crash::Medium::subsets) counts.
    Subset(u64),
    /// Drawn for each one by this seed.
    Seed(u64),
}

impl Choice {
    pub fn name(self) -> String {
        match self {
            Choice::None => "none".into(),
            Choice::All => "all".into(),
            Choice::Subset(n) => format!("of{n}"),
            Choice::Seed(n) => n.to_string(),
        }
    }

    pub fn parse(name: &str) -> Option<Choice> {
        Some(match (name, name.strip_prefix("of")) {
            ("none", _) => Choice::None,
            ("all", _) => Choice::All,
            (_, Some(n)) => Choice::Subset(n.parse().ok()?),
            (name, None) => Choice::Seed(name.parse().ok()?),
        })
    }
}
