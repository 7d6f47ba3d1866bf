//! A place in the C library's text that makes a system call, and how a jump takes its place.

/// Bytes of a jump to a trampoline.
pub const JUMP: usize = 5;

/// A site. Offsets count from where the library is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// Instructions from `at` set the arguments and the number; `syscall` is at `syscall`. They run in the trampoline,
    /// and a call that is the kernel's is made at `syscall`, where the unwinder knows the frame (a thread may be cancelled in it).
    Before { at: u32, syscall: u32 },
    /// `read`: its entry compares a byte at `flag` with 0 (7 bytes) and branches. `syscall` is that of the branch not taken.
    Read { at: u32, flag: u32, syscall: u32 },
    /// `xor %eax,%eax; syscall; cmp $-4096,%rax` (10 bytes), in no call that can be cancelled.
    Short { at: u32 },
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match *self {
            Site::Before { at, syscall } => write!(f, "b{at:x}+{:x}", syscall - at),
            Site::Read { at, flag, syscall } => write!(f, "r{at:x}+{:x}+{flag:x}", syscall - at),
            Site::Short { at } => write!(f, "s{at:x}"),
        }
    }
}

impl Site {
    /// Of its text: `b`, `r` or `s`, and numbers in base 16.
    pub fn parse(text: &[u8]) -> Option<Site> {
        let (kind, numbers) = text.split_first()?;
        let mut numbers = numbers.split(|byte| *byte == b'+').map(number);
        let mut next = || numbers.next().flatten();
        Some(match kind {
            b'b' => {
                let at = next()?;
                Site::Before { at, syscall: at.checked_add(next()?)? }
            }
            b'r' => {
                let (at, syscall, flag) = (next()?, next()?, next()?);
                Site::Read { at, flag, syscall: at.checked_add(syscall)? }
            }
            b's' => Site::Short { at: next()? },
            _ => return None,
        })
    }

    pub fn at(self) -> u32 {
        match self {
            Site::Before { at, .. } | Site::Read { at, .. } | Site::Short { at } => at,
        }
    }

    /// Does `text`, which begins at the site, look as the site says?
    pub fn matches(self, text: &[u8]) -> bool {
        let has = |at: u32, bytes: &[u8]| text.get(at as usize..).is_some_and(|text| text.starts_with(bytes));
        let calls = |syscall: u32| has(syscall - self.at(), &[0x0f, 0x05]);
        match self {
            Site::Before { at, syscall } => (JUMP as u32..40).contains(&(syscall - at)) && calls(syscall),
            Site::Read { syscall, .. } => has(0, &[0x80, 0x3d]) && has(7, &[0x74]) && calls(syscall),
            Site::Short { .. } => has(0, &[0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff]),
        }
    }
}

/// A number in base 16.
fn number(text: &[u8]) -> Option<u32> {
    let add = |n: u32, digit: &u8| Some(n.checked_mul(16)? + char::from(*digit).to_digit(16)?);
    text.iter().try_fold(0, add).filter(|_| !text.is_empty())
}
