//! What a child of `fork` has of the mappings of its parent: nothing.
//!
//! A session is its process's: its lock goes when that dies, and the others clean up after it. A child that had the memory mapped, or the
//! open file with the lock, would keep the session of a dead parent alive, and could store without a session of its own. So shared
//! mappings are not inherited (`MADV_DONTFORK`), and in the child their address space is taken by private zeros: else the next thing
//! that it maps could come to lie there, and a leftover of the parent's would change that. [`generation`] says that the process is
//! another one.
//!
//! Descriptors are inherited; those of open files with locks lead to `/dev/null` in the child.
//!
//! A child that was not made by libc's `fork` (but by the bare system call) has holes there: an access is a signal.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::Once;

use rustix::mm::{madvise, mmap, mmap_anonymous, Advice, MapFlags, ProtFlags};

use super::Mapping;

const PAGE: u64 = 4096;

/// How many times the process has been made by `fork` since its first ancestor that knew of this.
static GENERATION: AtomicU64 = AtomicU64::new(0);
static PLACES: AtomicPtr<Place> = AtomicPtr::new(null_mut());
static HANDLER: Once = Once::new();

/// A place in the list of what no child has. Places are used again and never go: the child walks the list whatever others did when it was
/// made.
struct Place {
    /// 0: the place is free. 1: it is being taken. Else the address of a mapping, or a descriptor + 2.
    base: AtomicUsize,
    /// 0: it is a descriptor.
    bytes: AtomicUsize,
    next: AtomicPtr<Place>,
}

/// Something that no child has.
pub struct Own(&'static Place);

impl Drop for Own {
    fn drop(&mut self) {
        self.0.base.store(0, Ordering::Release);
    }
}

/// Changes when the process goes on as its own child.
#[inline(always)]
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// From now on a child does not have the `bytes` bytes mapped at `base`, which are until this is dropped.
pub(super) fn keep(base: NonNull<u8>, bytes: usize) -> Own {
    watch();
    let place = free_place();
    place.bytes.store(bytes, Ordering::Relaxed);
    place.base.store(base.as_ptr() as usize, Ordering::Release);
    // SAFETY: the advice changes no content, and the whole range is mapped.
    let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxDontFork) };
    Own(place)
}

/// From now on a child has `/dev/null` in the place of `file`, which is open until this is dropped: the locks of an open file hold as long
/// as anybody has a descriptor of it.
pub fn keep_open(file: BorrowedFd) -> Own {
    watch();
    let place = free_place();
    place.bytes.store(0, Ordering::Relaxed);
    place.base.store(file.as_raw_fd() as usize + 2, Ordering::Release);
    Own(place)
}

fn watch() {
    // SAFETY: the handler is a function for the life of the process, and does what may be done in a child of several threads: it
    // loads, stores, and makes system calls.
    HANDLER.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
}

fn free_place() -> &'static Place {
    let mut at = PLACES.load(Ordering::Acquire);
    // SAFETY: places are leaked when they are made, and reached only by the list.
    while let Some(place) = unsafe { at.as_ref() } {
        if place.base.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return place;
        }
        at = place.next.load(Ordering::Acquire);
    }
    let made = Box::leak(Box::new(Place {
        base: AtomicUsize::new(1),
        bytes: AtomicUsize::new(0),
        next: AtomicPtr::new(null_mut()),
    }));
    let made: &'static Place = made;
    let mut first = PLACES.load(Ordering::Acquire);
    loop {
        made.next.store(first, Ordering::Relaxed);
        let place = std::ptr::from_ref(made).cast_mut();
        match PLACES.compare_exchange(first, place, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return made,
            Err(now) => first = now,
        }
    }
}

impl Mapping {
    /// Something that has an open file, and that no child inherits: a lock of that open file holds until this is dropped. Nothing of the
    /// file can be read by it.
    pub fn of_open_file(file: impl AsFd) -> rustix::io::Result<Mapping> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory; it has no access.
        let p = unsafe { mmap(null_mut(), PAGE as usize, ProtFlags::empty(), MapFlags::SHARED, file, 0) }?;
        let mut map = Mapping::adopt(p, PAGE, true);
        [&mut map.len, &mut map.short_end, &mut map.words].into_iter().for_each(|word| *word.get_mut() = 0);
        Ok(map)
    }
}

/// Runs in a child, before `fork` returns there.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let mut at = PLACES.load(Ordering::Acquire);
    // SAFETY: as in `free_place`.
    while let Some(place) = unsafe { at.as_ref() } {
        let (base, bytes) = (place.base.load(Ordering::Acquire), place.bytes.load(Ordering::Relaxed));
        if base > 1 && bytes == 0 {
            // SAFETY: system calls. The descriptor is the parent's until it is dropped, and nothing else has the number here.
            unsafe {
                let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
                libc::dup3(null, (base - 2) as i32, libc::O_CLOEXEC);
                libc::close(if null < 0 { (base - 2) as i32 } else { null });
            }
        } else if base > 1 {
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
            // SAFETY: the parent had it mapped here until it is dropped, so that nothing else can lie here; the child has either
            // nothing, or, where the advice was not taken, the same.
            let _ = unsafe {
                mmap_anonymous(
                    base as *mut c_void,
                    place.bytes.load(Ordering::Relaxed),
                    access,
                    flags | MapFlags::FIXED,
                )
            };
        }
        at = place.next.load(Ordering::Acquire);
    }
}
