//! The memory and the descriptors of the program around us: the one module with unsafe code.
//!
//! 1. The addresses and lengths come from a system call: the program says that its memory there is valid, as it says to the kernel.
//!    An address where there is none is EFAULT ([`touch`]).
//! 2. Nothing keeps such memory beyond the call.
//! 3. A descriptor's number is borrowed for one call of the kernel, which fails if there is none.

#![allow(unsafe_code)]

mod touch;

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{DupFlags, Errno};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use conquest_fs::path::PATH_MAX;

pub use touch::{after_fault, byte};

const PAGE: usize = 4096;
/// No program has memory above.
const END: usize = 0x7fff_ffff_f000;

fn check(addr: usize, len: usize) -> Result<(), Errno> {
    match addr.checked_add(len) {
        Some(end) if end <= END => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// May a program have memory there?
pub fn is_of_program(addr: usize, len: usize) -> bool {
    check(addr, len).is_ok()
}

/// A path, without the zero byte that ends it.
#[inline(always)]
pub fn path<'a>(addr: usize) -> Result<&'a [u8], Errno> {
    let text = string(addr, PATH_MAX)?;
    text.ok_or(Errno::NAMETOOLONG)
}

/// A text of at most so many bytes, without the zero byte that ends it.
#[inline(always)]
pub fn string<'a>(addr: usize, most: usize) -> Result<Option<&'a [u8]>, Errno> {
    let mut len = 0;
    loop {
        let at = addr + len;
        check(at, 1)?;
        touch::byte(at).ok_or(Errno::FAULT)?;
        // To the end of the page.
        let room = (PAGE - at % PAGE).min(most + 1 - len);
        // SAFETY: 1. The page is there, and no byte behind the end is looked at.
        let more = unsafe { libc::strnlen(at as *const libc::c_char, room) };
        len += more;
        match more < room {
            true => break,
            false if len > most => return Ok(None),
            false => {}
        }
    }
    // SAFETY: 1, 2.
    Ok(Some(unsafe { std::slice::from_raw_parts(addr as *const u8, len) }))
}

/// As much as there is, as a write takes it: no less than a byte.
#[inline(always)]
pub fn bytes_there<'a>(addr: usize, len: usize) -> Result<&'a [u8], Errno> {
    check(addr, len)?;
    if len == 0 {
        return Ok(&[]);
    }
    match touch::readable(addr, len) {
        0 => Err(Errno::FAULT),
        // SAFETY: 1, 2.
        len => Ok(unsafe { std::slice::from_raw_parts(addr as *const u8, len) }),
    }
}

#[inline(always)]
pub fn bytes<'a>(addr: usize, len: usize) -> Result<&'a [u8], Errno> {
    bytes_there(addr, len).and_then(|bytes| if bytes.len() == len { Ok(bytes) } else { Err(Errno::FAULT) })
}

/// Memory to store to, of which the first byte at least is there. What lies beyond `sure` bytes is not looked at: the caller does before it
/// stores there ([`can_store`]).
#[inline(always)]
pub fn room<'a>(addr: usize, len: usize, sure: usize) -> Result<&'a mut [u8], Errno> {
    check(addr, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    let sure = sure.clamp(1, len);
    let len = match touch::writable(addr, sure) {
        0 => return Err(Errno::FAULT),
        there if there < sure => there,
        _ => len,
    };
    // SAFETY: 1, 2.
    Ok(unsafe { std::slice::from_raw_parts_mut(addr as *mut u8, len) })
}

/// All of it is about to be overwritten.
#[inline(always)]
pub fn bytes_mut<'a>(addr: usize, len: usize) -> Result<&'a mut [u8], Errno> {
    check(addr, len)?;
    match touch::overwritable(addr, len) == len {
        true if len == 0 => Ok(&mut []),
        // SAFETY: 1, 2.
        true => Ok(unsafe { std::slice::from_raw_parts_mut(addr as *mut u8, len) }),
        false => Err(Errno::FAULT),
    }
}

/// Is the memory there that `room` has not looked at?
pub fn can_store(room: &[u8]) -> bool {
    touch::writable(room.as_ptr() as usize, room.len()) == room.len()
}

#[inline(always)]
pub fn get<T: FromBytes>(addr: usize) -> Result<T, Errno> {
    T::read_from_bytes(bytes(addr, size_of::<T>())?).map_err(|_| Errno::FAULT)
}

#[inline(always)]
pub fn put<T: IntoBytes + Immutable>(addr: usize, value: &T) -> Result<(), Errno> {
    bytes_mut(addr, size_of::<T>())?.copy_from_slice(value.as_bytes());
    Ok(())
}

/// The descriptor with this number.
#[inline(always)]
pub fn borrow<'a>(fd: RawFd) -> Result<BorrowedFd<'a>, Errno> {
    match fd {
        0.. => {
            // SAFETY: 3; the number is not -1.
            Ok(unsafe { BorrowedFd::borrow_raw(fd) })
        }
        _ => Err(Errno::BADF),
    }
}

/// Closes a descriptor that the table no longer has.
#[inline(always)]
pub fn close(fd: RawFd) {
    // SAFETY: 3; whoever calls this owns the number.
    unsafe { rustix::io::close(fd) }
}

/// Puts `fd` in the place of what has this number.
pub fn put_at(fd: impl AsFd, number: RawFd, close_on_exec: bool) -> Result<(), Errno> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: 3; it is not closed here.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    let flags = if close_on_exec { DupFlags::CLOEXEC } else { DupFlags::empty() };
    rustix::io::dup3(fd, &mut place, flags)
}

/// Makes a system call past libc; the result is as the kernel returns it.
///
/// # Safety
/// The kernel stores only to memory that the arguments lead to, which the caller may have it do.
pub unsafe fn system_call(nr: u32, args: &[usize; 6]) -> isize {
    let result;
    // SAFETY: the caller's; the kernel changes no other registers.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") nr as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// A system call that `rustix` does not have.
///
/// # Safety
/// The same.
unsafe fn syscall(nr: libc::c_long, [a, b, c]: [usize; 3]) -> Result<usize, Errno> {
    // SAFETY: the caller's.
    match unsafe { system_call(nr as u32, &[a, b, c, 0, 0, 0]) } {
        result @ 0.. => Ok(result as usize),
        result => Err(Errno::from_raw_os_error(-result as i32)),
    }
}

/// A duplicate of `fd` with the lowest free number from `first` on.
#[inline(always)]
pub fn duplicate(fd: impl AsFd, first: RawFd, close_on_exec: bool) -> Result<RawFd, Errno> {
    let cmd = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: the kernel stores nothing.
    unsafe { syscall(libc::SYS_fcntl, [number(fd), cmd as usize, first as usize]).map(|fd| fd as RawFd) }
}

fn number(fd: impl AsFd) -> usize {
    fd.as_fd().as_raw_fd() as usize
}

/// A `fcntl` whose argument is a structure.
pub fn fcntl<T: FromBytes + IntoBytes>(fd: BorrowedFd, cmd: u32, arg: &mut T) -> Result<usize, Errno> {
    // SAFETY: the structure is ours, and any bytes are one.
    unsafe { syscall(libc::SYS_fcntl, [number(fd), cmd as usize, arg as *mut T as usize]) }
}

/// With any operation that the program may ask for.
pub fn flock(fd: BorrowedFd, operation: u32) -> Result<usize, Errno> {
    // SAFETY: the kernel stores nothing.
    unsafe { syscall(libc::SYS_flock, [number(fd), operation as usize, 0]) }
}

/// A file handle of FUSE: number and generation of an inode.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Handle {
    len: u32,
    kind: u32,
    words: [u32; 3],
}

const FUSE_HANDLE: u32 = 0x81;

/// Opens an inode of the FUSE mount that `mount` lies in. Needs CAP_DAC_READ_SEARCH.
pub fn open_inode(mount: BorrowedFd, ino: u64, generation: u32, flags: u32) -> Result<OwnedFd, Errno> {
    let words = [(ino >> 32) as u32, ino as u32, generation];
    let handle = Handle { len: size_of_val(&words) as u32, kind: FUSE_HANDLE, words };
    // SAFETY: the kernel only reads the handle; the new descriptor is nobody else's.
    unsafe {
        let fd = syscall(
            libc::SYS_open_by_handle_at,
            [number(mount), &handle as *const Handle as usize, (flags | libc::O_CLOEXEC as u32) as usize],
        )?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// A system call as the kernel answers it.
#[cfg(test)]
pub fn kernel(nr: libc::c_long, args: &[usize; 6]) -> isize {
    // SAFETY: the tests pass what is theirs.
    unsafe { system_call(nr as u32, args) }
}
