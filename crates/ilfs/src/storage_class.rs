//! How content is to lie on disks: in how many replicas, when these are made, and whether it stays in one region.
//!
//! All content of a segment is of one class, and each class has heads of its own. The setting of a file selects the
//! class; the segment table has the present number of replicas.

/// The class of a segment, and of its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// One replica, in any region.
    #[default]
    None,
    /// So many replicas, 2 to 4, written at once.
    Mirror(u8),
    /// Two replicas, the second so many seconds after the first (I·LFS, section 5.4).
    Lazy(u32),
    /// One replica, in the region with this number, which has all of the file.
    Whole(u32),
}

/// Classes with heads in the head of the table; those of [`Class::Whole`] are in their regions.
pub const CLASSES: usize = 5;
/// The codes of [`Class::Lazy`] and [`Class::Whole`].
const LAZY: u8 = 4;
const WHOLE: u8 = 5;
/// Codes are less than this.
pub const CODES: u32 = 6;
/// Most replicas of a class.
pub const MOST_REPLICAS: u32 = 4;

impl Class {
    /// The code in the table: without the delay and the region, which belong to the segment.
    pub fn code(self) -> u8 {
        match self {
            Class::None => 0,
            Class::Mirror(replicas) => replicas.clamp(2, MOST_REPLICAS as u8) - 1,
            Class::Lazy(_) => LAZY,
            Class::Whole(_) => WHOLE,
        }
    }
}

/// Replicas that segments of a class are to have in the end; `None` for an unknown class.
pub fn wanted_replicas(code: u8) -> Option<u32> {
    match code {
        0 | WHOLE => Some(1),
        1..=3 => Some(u32::from(code) + 1),
        LAZY => Some(2),
        _ => None,
    }
}

/// Are all replicas of segments of that class written at once?
pub fn is_mirrored(code: u8) -> bool {
    (1..LAZY).contains(&code)
}

pub fn is_lazy(code: u8) -> bool {
    code == LAZY
}

pub fn is_whole(code: u8) -> bool {
    code == WHOLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_a_code() {
        let all = [Class::None, Class::Mirror(2), Class::Mirror(3), Class::Mirror(4), Class::Lazy(7), Class::Whole(3)];
        let replicas: Vec<_> = all.iter().map(|class| wanted_replicas(class.code())).collect();
        assert_eq!(replicas, [1, 2, 3, 4, 2, 1].map(Some));
        assert!((0..=5).eq(all.iter().map(|class| class.code())));
        assert_eq!(wanted_replicas(CODES as u8), None);
    }
}
