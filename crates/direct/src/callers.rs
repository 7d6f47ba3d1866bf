//! Code that calls the kernel past the C library, and so must never meet a placeholder.

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Most bytes from where a call's number is set to its `syscall`.
const WINDOW: usize = 40;
/// `mov $NR,%eax`
const SET_NUMBER: u8 = 0xb8;
/// Numbers of system calls are below.
const CALLS: u32 = 1024;
/// What follows a `syscall`: the result is compared, tested, moved or returned.
const AFTER: [&[u8]; 12] = [
    &[0xc3],
    &[0x48, 0x3d],
    &[0x3d],
    &[0x48, 0x85],
    &[0x85],
    &[0x48, 0x89],
    &[0x89],
    &[0x41, 0x89],
    &[0x49, 0x89],
    &[0x48, 0x63],
    &[0x48, 0x98],
    &[0x4c, 0x89],
];
/// Type of the note with which Go's linker marks what it makes, and its name.
const GO_BUILD_ID: u32 = 4;
const GO: &[u8] = b"Go\0\0";

/// Are these notes of what Go's linker has made? Go calls the kernel itself.
pub fn is_of_go(notes: &[u8]) -> bool {
    notes.get(8..16).is_some_and(|head| head[..4] == GO_BUILD_ID.to_ne_bytes() && head[4..] == *GO)
}

/// Does the text make system calls? It is read byte by byte: instructions of other kinds may look like one, but hardly ever do.
pub fn calls(text: &[u8]) -> bool {
    let sites = text.windows(2).enumerate().filter(|(_, bytes)| *bytes == SYSCALL);
    sites.into_iter().any(|(at, _)| {
        let before = &text[at.saturating_sub(WINDOW)..at];
        let sets_number =
            |bytes: &[u8]| bytes[0] == SET_NUMBER && u32::from_le_bytes(std::array::from_fn(|i| bytes[1 + i])) < CALLS;
        AFTER.iter().any(|after| text[at + 2..].starts_with(after)) && before.windows(5).any(sets_number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_calls_the_kernel_is_known() {
        // mov $0x1aa,%eax; mov %rcx,%r10; syscall; ret
        assert!(calls(&[0x55, 0xb8, 0xaa, 1, 0, 0, 0x49, 0x89, 0xca, 0x0f, 5, 0xc3]));
        // A displacement, and a number that is none.
        assert!(!calls(&[0xb8, 1, 0, 0, 0, 0xe8, 0x0f, 5, 0, 0]));
        assert!(!calls(&[0xb8, 1, 0, 1, 0, 0x0f, 5, 0xc3]));
    }

    #[test]
    fn what_go_has_made_is_known() {
        let note = |kind: u8, name: &[u8]| [&[4, 0, 0, 0, 9, 0, 0, 0, kind, 0, 0, 0], name].concat();
        assert!(is_of_go(&note(4, b"Go\0\0")) && !is_of_go(&note(4, b"GNU\0")) && !is_of_go(&note(3, b"Go\0\0")));
    }
}
