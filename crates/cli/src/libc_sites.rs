//! The places in the C library's text that make file calls, where direct access takes over.
//!
//! All of them must be understood: a library with one that is not is left as it is, and the mount serves its programs.

use std::path::Path;

use direct::calls::Class;
use direct::sites::{Site, JUMP};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};
use object::{Object, ObjectSection};

use crate::failure::{Context, Failure, Result};

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
/// Within so many bytes its slower branch makes the call.
const SLOW: usize = 64;

/// What there is to know of a C library.
pub struct Sites {
    pub build_id: Vec<u8>,
    pub sites: Vec<Site>,
}

/// The sites of the C library in this file.
pub fn of(library: &Path) -> Result<Sites> {
    let name = || library.display();
    let bytes = std::fs::read(library).context(|| format!("cannot read {}", name()))?;
    let unknown = || Failure::new(format!("{} is no C library that direct access knows", name()));
    let file = object::File::parse(&*bytes).map_err(|_| unknown())?;
    let build_id = file.build_id().ok().flatten().ok_or_else(unknown)?.to_vec();
    let text = file.section_by_name(".text").ok_or_else(unknown)?;
    let code = text.data().map_err(|_| unknown())?;
    let base = u32::try_from(text.address()).map_err(|_| unknown())?;
    let sites =
        find(code, base).map_err(|at| Failure::new(format!("{}: the call at {at:#x} is of no known form", name())))?;
    Ok(Sites { build_id, sites })
}

/// The sites in `code`, which is loaded at `base`; or where one is that is not understood.
fn find(code: &[u8], base: u32) -> std::result::Result<Vec<Site>, u32> {
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
    let Some(entry) = start.checked_sub(COMPARE_LEN + BRANCH_LEN) else { return Found::Unknown };
    if code[entry..].starts_with(&COMPARE) && code[entry + COMPARE_LEN] == 0x74 {
        let disp = i32::from_le_bytes(std::array::from_fn(|i| code[entry + 2 + i]));
        let flag = offset(entry + COMPARE_LEN).wrapping_add_signed(disp);
        return Found::Site(Site::Read { at: offset(entry), flag, syscall: offset(syscall) });
    }
    Found::Site(Site::Short { at: offset(start) })
}
