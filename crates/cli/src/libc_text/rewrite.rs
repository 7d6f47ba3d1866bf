//! Jumps in the place of sites, and the trampolines where they lead to.
//!
//! A site's trampoline skips the red zone below the stack, calls the hook of the library that is loaded into programs, and goes on behind the
//! `syscall` where the call was answered, or at it. A system call changes no register but rax, rcx and r11: neither may the hook.

use direct::rewritten::{DISTANCE, ENTRY, PAGE};

use super::find::{Site, JUMP};

/// Bytes of [`Code::call_hook`].
const CALL: usize = 24;
/// `cmp $-4096,%rax`
const COMPARE: [u8; 6] = [0x48, 0x3d, 0, 0xf0, 0xff, 0xff];

/// Makes the sites in `text` lead to trampolines: the code of these. `start` is where the text begins in the library.
pub(super) fn rewrite(text: &mut [u8], start: u32, sites: &[Site]) -> Vec<u8> {
    let begin = i64::from(start) - DISTANCE as i64;
    let mut code = Code { bytes: Vec::new(), begin };
    // jmp *ENTRY(%rip): all trampolines call this.
    code.jump(&[0xff, 0x25], begin - ENTRY as i64);
    for site in sites {
        let at = site.at();
        let trampoline = code.here();
        code.trampoline(&text[(at - start) as usize..], *site);
        let jump = &mut text[(at - start) as usize..][..JUMP];
        jump[0] = 0xe9;
        jump[1..].copy_from_slice(&displacement(i64::from(at) + JUMP as i64, trampoline));
    }
    code.bytes.resize(code.bytes.len().next_multiple_of(PAGE), 0xcc);
    code.bytes
}

/// Code that is being written. Places count, as those of sites, from where the library is loaded.
struct Code {
    bytes: Vec<u8>,
    begin: i64,
}

impl Code {
    /// Where the next byte will be.
    fn here(&self) -> i64 {
        self.begin + self.bytes.len() as i64
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// An instruction that ends with a displacement of 32 bits.
    fn jump(&mut self, opcode: &[u8], to: i64) {
        self.put(opcode);
        self.put(&displacement(self.here() + 4, to));
    }

    /// Goes to `answered` where the call was answered, else on.
    fn call_hook(&mut self, answered: i64) {
        // lea rsp,[rsp-128]; call; lea rsp,[rsp+128]; jc answered
        self.put(&[0x48, 0x8d, 0x64, 0x24, 0x80]);
        self.jump(&[0xe8], self.begin);
        self.put(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]);
        self.jump(&[0x0f, 0x82], answered);
    }

    /// That of a site, at which `text` begins.
    fn trampoline(&mut self, text: &[u8], site: Site) {
        match site {
            Site::Before { at, syscall } => {
                self.put(&text[..(syscall - at) as usize]);
                self.call_hook(i64::from(syscall) + 2);
                self.jump(&[0xe9], i64::from(syscall));
            }
            Site::Read { at, flag, syscall } => {
                // xor eax,eax: the number of read.
                self.put(&[0x31, 0xc0]);
                self.call_hook(i64::from(syscall) + 2);
                // cmp byte [flag],0
                self.put(&[0x80, 0x3d]);
                self.put(&displacement(self.here() + 5, i64::from(flag)));
                self.put(&[0]);
                self.jump(&[0xe9], i64::from(at) + 7);
            }
            Site::Short { at } => {
                self.put(&[0x31, 0xc0]);
                self.call_hook(self.here() + CALL as i64 + 2);
                self.put(&[0x0f, 0x05]);
                self.put(&COMPARE);
                self.jump(&[0xe9], i64::from(at) + 10);
            }
        }
    }
}

fn displacement(from: i64, to: i64) -> [u8; 4] {
    i32::try_from(to - from).expect("the library is far smaller than a displacement reaches").to_le_bytes()
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

    use super::*;

    const START: u32 = 0x20_0000;

    /// The instructions of the trampoline that `text` leads to at this site, to its last jump.
    fn instructions(text: &[u8], code: &[u8], site: Site) -> Vec<Instruction> {
        let begin = u64::from(START).wrapping_sub(DISTANCE as u64);
        let at = (site.at() - START) as usize;
        let mut decoder = Decoder::with_ip(64, &text[at..], site.at().into(), DecoderOptions::NONE);
        let jump = decoder.decode();
        assert_eq!((jump.flow_control(), jump.len()), (FlowControl::UnconditionalBranch, JUMP));
        let to = jump.near_branch64();
        let mut decoder = Decoder::with_ip(64, &code[to.wrapping_sub(begin) as usize..], to, DecoderOptions::NONE);
        let mut found = Vec::new();
        while found.last().is_none_or(|last: &Instruction| last.flow_control() != FlowControl::UnconditionalBranch) {
            found.push(decoder.decode());
        }
        found
    }

    /// Where it goes on if the kernel is to answer, and if the call was answered.
    fn ends(found: &[Instruction]) -> (u64, u64) {
        let answered = found.iter().find(|one| one.flow_control() == FlowControl::ConditionalBranch);
        (found.last().unwrap().near_branch64(), answered.unwrap().near_branch64())
    }

    #[test]
    fn trampolines_lead_back() {
        // mov $0x101,%eax; syscall
        let before = [0xb8, 1, 1, 0, 0, 0x0f, 5];
        // cmpb $0,0x1000(%rip); je +5; xor %eax,%eax; syscall; cmp $-4096,%rax
        let read = [0x80, 0x3d, 0, 0x10, 0, 0, 0, 0x74, 5, 0x31, 0xc0, 0x0f, 5, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff];
        let short = &read[9..];
        let mut text = [&before[..], &read, short].concat();
        let [a, b, c] = [0, before.len(), before.len() + read.len()].map(|at| START + at as u32);
        let flag = b + 7 + 0x1000;
        let sites = [
            Site::Before { at: a, syscall: a + 5 },
            Site::Read { at: b, flag, syscall: b + 11 },
            Site::Short { at: c },
        ];
        let code = rewrite(&mut text, START, &sites);
        let [before, read, short] = sites.map(|site| instructions(&text, &code, site));
        assert_eq!(ends(&before), (u64::from(a) + 5, u64::from(a) + 7));
        assert_eq!(ends(&read), (u64::from(b) + 7, u64::from(b) + 13));
        let compares = read.iter().find(|one| one.is_ip_rel_memory_operand()).unwrap();
        assert_eq!((compares.ip_rel_memory_address(), compares.immediate8()), (u64::from(flag), 0));
        let (kernel, answered) = ends(&short);
        assert_eq!(kernel, u64::from(c) + 10);
        // Behind its own syscall.
        assert_eq!(answered, short[short.len() - 2].ip());
        for found in [before, read, short] {
            let calls = found.iter().find(|one| one.flow_control() == FlowControl::Call).unwrap();
            assert_eq!(calls.near_branch64(), u64::from(START).wrapping_sub(DISTANCE as u64));
        }
    }
}
