//! Which arguments of a system call are descriptors: before the kernel is asked, they are made real.

use libc::*;

use crate::calls::Class;

/// The descriptors that a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    None,
    /// This argument.
    One(u8),
    /// These arguments.
    Two(u8, u8),
    /// An array of `struct pollfd`: address and length.
    Poll,
    /// Sets of numbers below the first argument: the second to the fourth.
    Sets,
    /// The first argument; where content is cloned the third too.
    Ioctl,
    /// The first argument, and those that the message in the second holds.
    Message,
    /// All that the process has.
    All,
    /// All that a new program gets.
    Inherited,
    /// The first argument, which a new program need not get, and all that it gets.
    FirstAndInherited,
}

/// The descriptor of the file whose content an `ioctl` clones, if that is the command.
pub fn cloned(args: &[usize; 6]) -> Option<i32> {
    (args[1] as u32 == FICLONE as u32).then_some(args[2] as i32)
}

/// The descriptors that system call `nr` takes; all, where that is not known.
pub fn of(nr: u32) -> Takes {
    #[allow(non_upper_case_globals)]
    match c_long::from(nr) {
        SYS_poll | SYS_ppoll => Takes::Poll,
        SYS_select | SYS_pselect6 => Takes::Sets,
        SYS_sendmsg => Takes::Message,
        SYS_fchdir => Takes::One(0),
        SYS_ioctl => Takes::Ioctl,
        SYS_execveat => Takes::FirstAndInherited,
        // It is wholly served, but that the kernel closes what is not served here.
        SYS_close_range => Takes::None,
        _ => of_class(Class::of(nr)),
    }
}

fn of_class(class: Class) -> Takes {
    match class {
        Class::Path(_) | Class::Paths(..) | Class::Enter | Class::Credentials | Class::Limits => Takes::None,
        Class::At(dir, _) => Takes::One(dir),
        Class::TwoAt([from, _], [to, _]) => Takes::Two(from, to),
        Class::Descriptor(n) => Takes::One(n),
        Class::Descriptors(a, b) => Takes::Two(a, b),
        Class::Map => Takes::One(4),
        Class::Exec => Takes::Inherited,
        Class::Other | Class::Somehow | Class::Clone | Class::Mounts | Class::Signal | Class::Wait => Takes::All,
    }
}

/// The arguments of system call `nr` that are paths.
pub fn paths(nr: u32) -> impl Iterator<Item = usize> {
    #[allow(non_upper_case_globals)]
    let (first, second) = match (Class::of(nr), c_long::from(nr)) {
        (Class::Path(n) | Class::At(_, n), _) => (Some(n), None),
        (Class::Paths(a, b) | Class::TwoAt([_, a], [_, b]), _) => (Some(a), Some(b)),
        (_, SYS_chdir | SYS_execve) => (Some(0), None),
        (_, SYS_execveat) => (Some(1), None),
        _ => (None, None),
    };
    first.into_iter().chain(second).map(usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_may_take_any() {
        assert_eq!((of(9999), of(SYS_io_uring_setup as u32)), (Takes::All, Takes::All));
        assert_eq!(of(SYS_mmap as u32), Takes::One(4));
        assert_eq!(of(SYS_open as u32), Takes::None);
        assert_eq!((of(SYS_tee as u32), of(SYS_splice as u32)), (Takes::Two(0, 1), Takes::Two(0, 2)));
    }
}
