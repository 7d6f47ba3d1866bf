//! The fields of an inode that are coded.

/// The fields of an inode that are coded, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Field {
    /// Type, form of the content, and which of the other fields follow.
    Shape,
    Size,
    Location,
    Perm,
    Links,
    Settings,
    Extra,
    Xattr,
    Generation,
    Mtime,
    Btime,
    Ctime,
    Atime,
    /// The part below a second of a time that is far from its reference: of each of the four.
    MtimeNanos,
    BtimeNanos,
    CtimeNanos,
    AtimeNanos,
}

impl Field {
    pub const COUNT: usize = 17;
    pub const ALL: [Field; Field::COUNT] = [
        Field::Shape,
        Field::Size,
        Field::Location,
        Field::Perm,
        Field::Links,
        Field::Settings,
        Field::Extra,
        Field::Xattr,
        Field::Generation,
        Field::Mtime,
        Field::Btime,
        Field::Ctime,
        Field::Atime,
        Field::MtimeNanos,
        Field::BtimeNanos,
        Field::CtimeNanos,
        Field::AtimeNanos,
    ];

    /// Bits of its largest value.
    pub fn width(self) -> u8 {
        match self {
            Field::Shape => 24 + OPTIONAL as u8,
            Field::Perm | Field::Generation => 33,
            Field::Links => 32,
            Field::Settings => 24,
            Field::MtimeNanos | Field::BtimeNanos | Field::CtimeNanos | Field::AtimeNanos => 31,
            _ => 64,
        }
    }

    /// The value up to which its values are likely in any tree.
    pub fn small(self) -> u64 {
        match self {
            Field::Perm => 8,
            Field::Links => 4,
            _ => 0,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Field::Shape => "shape",
            Field::Size => "size",
            Field::Location => "location",
            Field::Perm => "permissions",
            Field::Links => "links",
            Field::Settings => "settings",
            Field::Extra => "extra",
            Field::Xattr => "attributes",
            Field::Generation => "generation",
            Field::Mtime => "mtime",
            Field::Btime => "btime",
            Field::Ctime => "ctime",
            Field::Atime => "atime",
            Field::MtimeNanos => "mtime ns",
            Field::BtimeNanos => "btime ns",
            Field::CtimeNanos => "ctime ns",
            Field::AtimeNanos => "atime ns",
        }
    }
}

/// Fields that the shape may leave out: [`Field::Location`] to [`Field::Atime`].
pub(super) const OPTIONAL: u32 = 11;
