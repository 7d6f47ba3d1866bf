//! The media of a pool's persistent RAM.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// The medium of the persistent RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MediumKind {
    /// RAM that survives a power cut by a battery: stores are durable when visible.
    Battery,
    /// Persistent memory behind the processor's caches: a DAX device, or a file on a DAX mount.
    Dax,
    /// Ordinary RAM with a backing: durable after `fsync`, or with the next commit.
    Logged,
}

impl MediumKind {
    /// The default medium: `logged`, which is safe on any machine; with a file or device of persistent RAM
    /// of its own, `battery`.
    pub fn usual(nvram: Option<&Path>) -> MediumKind {
        match nvram {
            Some(_) => MediumKind::Battery,
            None => MediumKind::Logged,
        }
    }
}

impl From<MediumKind> for pram::MediumKind {
    fn from(kind: MediumKind) -> Self {
        match kind {
            MediumKind::Battery => pram::MediumKind::Battery,
            MediumKind::Dax => pram::MediumKind::Dax,
            MediumKind::Logged => pram::MediumKind::Logged,
        }
    }
}

impl std::fmt::Display for MediumKind {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(pram::MediumKind::from(*self).name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FormatOptions;

    #[test]
    fn where_nobody_says_a_pool_is_safe_on_any_machine() {
        assert_eq!(FormatOptions::sized(1 << 20).medium, MediumKind::Logged);
        assert_eq!(MediumKind::usual(Some(Path::new("/dev/pmem0"))), MediumKind::Battery);
    }
}
