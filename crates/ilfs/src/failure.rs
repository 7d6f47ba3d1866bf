//! How the log treats a failure of a region.

use exraid::Class;

use super::table::Cause;

/// Does the region take nothing more?
pub(super) fn is_gone(e: &exraid::Error) -> bool {
    matches!(e.class, Class::Gone | Class::ReadOnly | Class::Timeout)
}

/// The cause to record for a region that failed so.
pub(super) fn cause_of(e: &exraid::Error) -> Cause {
    match e.class {
        Class::Gone | Class::ReadOnly => Cause::Missing,
        Class::Timeout => Cause::Late,
        _ => Cause::Failed,
    }
}

/// Is it a failure of the slot, which is not used again then?
pub(super) fn is_of_the_slot(e: &exraid::Error) -> bool {
    !matches!(e.class, Class::NoSpace | Class::Gone | Class::ReadOnly)
}
