//! The places in the C library's text that make file calls, where direct access takes over.
//!
//! All of them must be understood: a library with one that is not is left as it is, and the mount serves its programs.

use direct::calls::Class;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

/// Bytes of the jump to a trampoline, which takes the place of a site's first.
pub(super) const JUMP: usize = 5;
/// Most bytes from where a call's number is set to its `syscall`.
const WINDOW: usize = 40;
/// `mov $NR,%eax`.
const SET_NUMBER: u8 = 0xb8;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `xor %eax,%eax; syscall; cmp $-4096,%rax`: `read`.
const READ: [u8; 10] = [0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff];
/// `cmpb $0,FLAG(%rip)`, with which `read` begins where it can be cancelled, up to the flag; bytes of it, and of the branch behind it.
const COMPARE: [u8; 2] = [0x80, 0x3d];
const COMPARE_LEN: usize = 7;
const BRANCH_LEN: usize = 2;
const JUMP_IF_EQUAL: u8 = 0x74;
/// Within so many bytes its slower branch makes the call.
const SLOW: usize = 64;

/// A place that makes a system call. Offsets count from where the library is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    /// Instructions from `at` set the arguments and the number; `syscall` is at `syscall`. They run in the trampoline,
    /// and a call that is the kernel's is made at `syscall`, where the unwinder knows the frame (a thread may be cancelled in it).
    Before { at: u32, syscall: u32 },
    /// `read`: its entry compares a byte at `flag` with 0 (7 bytes) and branches. `syscall` is that of the branch not taken.
    Read { at: u32, flag: u32, syscall: u32 },
    /// `xor %eax,%eax; syscall; cmp $-4096,%rax` (10 bytes), in no call that can be cancelled.
    Short { at: u32 },
}

impl Site {
    pub(super) fn at(self) -> u32 {
        match self {
            Site::Before { at, .. } | Site::Read { at, .. } | Site::Short { at } => at,
        }
    }
}

/// The sites in `code`, which is loaded at `base`; or where one is that is not understood.
pub(super) fn find(code: &[u8], base: u32) -> Result<Vec<Site>, u32> {
    let mut sites = Vec::new();
    let mut at = 0;
    // Where `read` goes on that can be cancelled: its entry has the site.
    let mut slow = 0..0;
    while let Some(found) = code[at..].windows(2).position(|bytes| bytes == SYSCALL).map(|found| at + found) {
        at = found + 2;
        if slow.contains(&found) {
            continue;
        }
        match site_at(code, found, base) {
            Found::Site(site) => {
                if let Site::Read { at, .. } = site {
                    let branch = (at - base) as usize + COMPARE_LEN;
                    let to = (branch + BRANCH_LEN).wrapping_add_signed(code[branch + 1] as i8 as isize);
                    slow = to..to + SLOW;
                }
                sites.push(site);
            }
            Found::Other => {}
            Found::Unknown => return Err(base + found as u32),
        }
    }
    Ok(sites)
}

enum Found {
    Site(Site),
    /// Another call than direct access answers, or none.
    Other,
    Unknown,
}

fn site_at(code: &[u8], syscall: usize, base: u32) -> Found {
    let offset = |at: usize| base + at as u32;
    if code[..syscall].ends_with(&READ[..2]) {
        return read_at(code, syscall, base);
    }
    for at in (syscall.saturating_sub(WINDOW)..=syscall.saturating_sub(JUMP)).rev() {
        let is_function = is_syscall_function(&code[at..syscall]);
        if !is_function && code[at] != SET_NUMBER {
            continue;
        }
        let Some(number) = straight_to(&code[at..syscall]) else { continue };
        return match number {
            Some(nr) if Class::of(nr) == Class::Other => Found::Other,
            Some(_) => Found::Site(Site::Before { at: offset(at), syscall: offset(syscall) }),
            None if is_function => Found::Site(Site::Before { at: offset(at), syscall: offset(syscall) }),
            None => Found::Other,
        };
    }
    Found::Other
}

/// `mov 8(%rsp),%r9`, the last instruction of the function `syscall`.
fn is_syscall_function(window: &[u8]) -> bool {
    window == [0x4c, 0x8b, 0x4c, 0x24, 0x08]
}

/// Do these instructions come one after another, wherever they lie in memory? The number that they leave in eax, if they set it.
fn straight_to(window: &[u8]) -> Option<Option<u32>> {
    let mut decoder = Decoder::new(64, window, DecoderOptions::NONE);
    let (mut number, mut instruction) = (None, Instruction::default());
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let moves = instruction.flow_control() == FlowControl::Next && !instruction.is_ip_rel_memory_operand();
        if instruction.is_invalid() || !moves {
            return None;
        }
        let sets_eax =
            instruction.op0_kind() == OpKind::Register && instruction.op0_register().full_register() == Register::RAX;
        if sets_eax {
            number = (instruction.code() == Code::Mov_r32_imm32).then(|| instruction.immediate32());
        }
    }
    Some(number)
}

/// The site of a `read`, whose number is 0.
fn read_at(code: &[u8], syscall: usize, base: u32) -> Found {
    let (start, offset) = (syscall - 2, |at: usize| base + at as u32);
    if !code[start..].starts_with(&READ) {
        // The number 0 of another call: `syscall` has been cleared for what comes, or these are no instructions.
        return Found::Unknown;
    }
    let entry = start.checked_sub(COMPARE_LEN + BRANCH_LEN);
    let compares = |entry: &usize| code[*entry..].starts_with(&COMPARE) && code[*entry + COMPARE_LEN] == JUMP_IF_EQUAL;
    if let Some(entry) = entry.filter(compares) {
        let disp = i32::from_le_bytes(std::array::from_fn(|i| code[entry + COMPARE.len() + i]));
        let flag = offset(entry + COMPARE_LEN).wrapping_add_signed(disp);
        return Found::Site(Site::Read { at: offset(entry), flag, syscall: offset(syscall) });
    }
    Found::Site(Site::Short { at: offset(start) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u32 = 0x1000;

    #[test]
    fn calls_of_known_forms_are_found() {
        // mov $0x101,%eax; syscall
        assert_eq!(find(&[0xb8, 1, 1, 0, 0, 0x0f, 5], BASE), Ok(vec![Site::Before { at: BASE, syscall: BASE + 5 }]));
        // mov $0x11d,%eax; mov %rsi,%rdx; xor %esi,%esi; syscall
        let apart = [0xb8, 0x1d, 1, 0, 0, 0x48, 0x89, 0xf2, 0x31, 0xf6, 0x0f, 5];
        assert_eq!(find(&apart, BASE), Ok(vec![Site::Before { at: BASE, syscall: BASE + 10 }]));
        assert_eq!(find(&READ, BASE), Ok(vec![Site::Short { at: BASE }]));
        // futex, and a number that nobody sets here.
        assert_eq!(find(&[0xb8, 0xca, 0, 0, 0, 0x0f, 5], BASE), Ok(vec![]));
        assert_eq!(find(&[0x44, 0x89, 0xc8, 0x0f, 5], BASE), Ok(vec![]));
    }

    #[test]
    fn instructions_that_cannot_move_are_left() {
        // mov $1,%eax; jne +0; syscall
        assert_eq!(find(&[0xb8, 1, 0, 0, 0, 0x75, 0, 0x0f, 5], BASE), Ok(vec![]));
        // mov $1,%eax; mov 16(%rip),%edi; syscall
        assert_eq!(find(&[0xb8, 1, 0, 0, 0, 0x8b, 0x3d, 16, 0, 0, 0, 0x0f, 5], BASE), Ok(vec![]));
        assert_eq!(find(&[0x31, 0xc0, 0x0f, 5, 0x90], BASE), Err(BASE + 2));
    }
}
