//! Whether a file's content is compressed in memory once it has not been used for a while, and how.
//!
//! | value | |
//! | --- | --- |
//! | `auto` | with LZ4 after minutes, with zstd after a day, and plain again when it is read often: in effect if nothing is set |
//! | `always` | with zstd, as soon as it is quiet, and plain only for a change |
//! | `never` | not at all: present content stays as it is |
//! | `warm` | like `auto`, with LZ4 only |
//! | `cold` | like `auto`, with zstd at once |

/// When and how content is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compression {
    #[default]
    Auto = 1,
    Always = 2,
    Never = 3,
    Warm = 4,
    Cold = 5,
}

impl Compression {
    pub const ALL: [Compression; 5] =
        [Compression::Auto, Compression::Always, Compression::Never, Compression::Warm, Compression::Cold];

    /// As it is written in attributes and options.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Auto => "auto",
            Compression::Always => "always",
            Compression::Never => "never",
            Compression::Warm => "warm",
            Compression::Cold => "cold",
        }
    }

    /// From its name.
    pub fn from_name(name: &[u8]) -> Option<Compression> {
        Compression::ALL.into_iter().find(|compression| compression.name().as_bytes() == name)
    }

    pub(super) fn from_code(code: u16) -> Option<Compression> {
        Compression::ALL.into_iter().find(|compression| *compression as u16 == code)
    }

    /// Does content stay compressed though it is read often?
    pub(crate) fn stays(self) -> bool {
        self == Compression::Always
    }
}
