//! The one function that all file calls of the process come to.

use direct::calls::Class;
use direct::{Answer, Engine};
use pram::mem::descriptor;

use crate::{counts, loaded, mounts, operation, process, raw, signals, stack};

const CLOSE_RANGE_UNSHARE: u32 = 2;
const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// What a hook has found.
#[repr(C)]
pub struct Outcome {
    value: isize,
    /// 1: `value` is the call's result; 0: the kernel is to be asked.
    is_answered: usize,
}

impl Outcome {
    const KERNEL: Outcome = Outcome { value: 0, is_answered: 0 };

    fn of(value: isize) -> Outcome {
        Outcome { value, is_answered: 1 }
    }
}

/// What the program asks for, by the call's number and arguments.
pub extern "C" fn hook(nr: u32, args: &[usize; 6]) -> Outcome {
    let class = Class::of(nr);
    if class == Class::Other {
        return Outcome::KERNEL;
    }
    let looked = operation::within(|| if process::is_guest() { Outcome::KERNEL } else { look(class, nr, args) });
    looked.unwrap_or(Outcome::KERNEL)
}

fn look(class: Class, nr: u32, args: &[usize; 6]) -> Outcome {
    let arg = |n: u8| args[n as usize];
    let descriptor = |n: u8| mounts::of_descriptor(arg(n) as i32);
    let path = |n: u8| mounts::of_path(arg(n));
    let at =
        |[dir, name]: [u8; 2]| descriptor(dir).or_else(|| path(name).filter(|_| is_from_here(arg(dir), arg(name))));
    let engine = match class {
        Class::Path(n) => path(n),
        Class::Paths(a, b) => path(a).or_else(|| path(b)),
        Class::At(dir, name) => at([dir, name]),
        Class::TwoAt(from, to) => at(from).or_else(|| at(to)),
        Class::Descriptor(n) => descriptor(n).or_else(|| of_cloned(nr, args)),
        Class::Descriptors(a, b) => descriptor(a).or_else(|| descriptor(b)),
        Class::Map if arg(4) as i32 >= 0 => mounts::engines().find(|engine| engine.is_of_pool(arg(4) as i32)),
        Class::Map => None,
        // Without an engine these take a few instructions, and little of the program's stack.
        Class::Clone | Class::Exec | Class::Signal | Class::Wait if mounts::engines().next().is_none() => {
            return look_at_process(class, nr, args);
        }
        _ => return stack::on_own(|| look_at_process(class, nr, args)),
    };
    let takes_others = matches!(class, Class::Descriptor(_) | Class::Map) && engine.is_none();
    if takes_others || matches!(class, Class::Descriptors(..)) {
        if let Some(refused) = protect_own(class, nr, args) {
            return refused;
        }
    }
    let Some(engine) = engine else { return Outcome::KERNEL };
    match class {
        Class::Descriptors(a, b) => leave_others([a, b].map(arg), engine),
        Class::TwoAt([a, _], [b, _]) => leave_others([a, b].map(arg), engine),
        _ => {}
    }
    ask(engine, nr, args)
}

/// A call names descriptors of several pools: an engine knows nothing of those of another.
#[inline]
fn leave_others(numbers: [usize; 2], engine: &'static Engine) {
    for other in mounts::engines().filter(|other| !std::ptr::eq(*other, engine)) {
        for fd in numbers.into_iter().map(|fd| fd as i32).filter(|fd| other.is_direct(*fd)) {
            stack::on_own(|| other.make_real(fd));
        }
    }
}

/// The engine of the file that a call clones.
#[inline]
fn of_cloned(nr: u32, args: &[usize; 6]) -> Option<&'static Engine> {
    match nr == libc::SYS_ioctl as u32 {
        true => direct::cloned(args).and_then(mounts::of_descriptor),
        false => None,
    }
}

/// To the program our descriptors are not open. One at a number where it puts another is moved away.
#[inline]
fn protect_own(class: Class, nr: u32, args: &[usize; 6]) -> Option<Outcome> {
    let is_own = |n: u8| descriptor::is_own(args[n as usize] as i32);
    let replaces = matches!(i64::from(nr), libc::SYS_dup2 | libc::SYS_dup3);
    let refuses = match class {
        Class::Descriptor(n) => is_own(n),
        Class::Descriptors(a, _) if replaces => is_own(a),
        Class::Descriptors(a, b) => is_own(a) || is_own(b),
        _ => is_own(4),
    };
    if refuses {
        return Some(Outcome::of(-(libc::EBADF as isize)));
    }
    let is_free = !replaces || !is_own(1) || descriptor::give_up(args[1] as i32).is_ok();
    (!is_free).then(|| Outcome::of(-(libc::EBUSY as isize)))
}

/// Counts a call that may take descriptors which are served by engines.
fn count_somehow(nr: u32, args: &[usize; 6], is_direct: bool) {
    if counts::are_kept() && mounts::engines().any(|engine| engine.takes_any(nr, args)) {
        counts::add(nr, is_direct);
    }
}

/// Closes all but our own.
fn close_range(nr: u32, args: &[usize; 6]) -> Outcome {
    let [first, last, flags] = [0, 1, 2].map(|n| args[n] as u32);
    if first > last || flags & !(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) != 0 {
        return Outcome::KERNEL;
    }
    count_somehow(nr, args, true);
    mounts::engines().for_each(|engine| _ = engine.call(nr, args));
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        // Threads have descriptors of their own from now on.
        mounts::refuse_all();
    }
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        // Ours close on exec.
        return Outcome::KERNEL;
    }
    let (mut from, mut done) = (first, 0);
    let mut close =
        |from: u32, to: u32| done = done.min(raw::call(nr, &[from as usize, to as usize, flags as usize, 0, 0, 0]));
    for own in descriptor::own_from(first).map(|own| own as u32).take_while(|own| *own <= last) {
        if from < own {
            close(from, own - 1);
        }
        from = own + 1;
    }
    if from <= last {
        close(from, last);
    }
    Outcome::of(done)
}

/// Does a path lead from the root or the working directory, whatever the descriptor beside it is?
fn is_from_here(dir: usize, path: usize) -> bool {
    dir as i32 == libc::AT_FDCWD || direct::byte(path) == Some(b'/')
}

fn ask(engine: &Engine, nr: u32, args: &[usize; 6]) -> Outcome {
    let opens = matches!(i64::from(nr), libc::SYS_open | libc::SYS_openat | libc::SYS_openat2 | libc::SYS_creat);
    if opens && loaded::has_grown() && stack::on_own(loaded::look) {
        stack::on_own(|| mounts::engines().for_each(Engine::open_only_real));
    }
    let answer = stack::on_own(|| engine.call(nr, args));
    counts::add(nr, matches!(answer, Answer::Done(_)));
    match answer {
        Answer::Done(value) => Outcome::of(value),
        Answer::Kernel => Outcome::KERNEL,
    }
}

/// Calls that change the process, or name files in ways of their own.
fn look_at_process(class: Class, nr: u32, args: &[usize; 6]) -> Outcome {
    let call = || Outcome::of(raw::call(nr, args));
    match class {
        Class::Somehow if nr == libc::SYS_close_range as u32 => close_range(nr, args),
        Class::Somehow => {
            // The kernel may use a descriptor that a ring names without a call.
            if nr == libc::SYS_io_uring_setup as u32 {
                loaded::note_rings();
                mounts::engines().for_each(Engine::open_only_real);
            }
            count_somehow(nr, args, false);
            for engine in mounts::engines() {
                if let Answer::Done(value) = engine.call(nr, args) {
                    return Outcome::of(value);
                }
            }
            Outcome::KERNEL
        }
        Class::Clone => {
            process::before_clone(clone_flags(nr, args));
            Outcome::KERNEL
        }
        Class::Exec => {
            mounts::engines().for_each(|engine| _ = engine.call(nr, args));
            Outcome::KERNEL
        }
        Class::Signal => Outcome::of(signals::set_action(nr, args)),
        Class::Enter => {
            let is_number = nr == libc::SYS_fchdir as u32;
            if is_number && descriptor::is_own(args[0] as i32) {
                return Outcome::of(-(libc::EBADF as isize));
            }
            let engine = if is_number { mounts::of_descriptor(args[0] as i32) } else { mounts::of_named(args[0]) };
            engine.map(|engine| engine.call(nr, args));
            let done = call();
            mounts::look_at_working_directory();
            done
        }
        Class::Mounts => {
            mounts::refuse_all();
            Outcome::KERNEL
        }
        Class::Credentials => {
            // Without its privileges the process may have no way to a file that it has open. A child, or what it executes, needs a real one.
            if nr != libc::SYS_umask as u32 {
                mounts::engines().for_each(|engine| _ = engine.make_all_real());
            }
            let done = call();
            mounts::engines().for_each(Engine::refresh_caller);
            done
        }
        Class::Limits => {
            if process::limits_memory(nr, args) {
                mounts::refuse_all();
            }
            let done = {
                let _nobody_else_sets_it = descriptor::hold();
                call()
            };
            mounts::engines().for_each(Engine::refresh_limits);
            done
        }
        _ => {
            mounts::look_again();
            Outcome::KERNEL
        }
    }
}

fn clone_flags(nr: u32, args: &[usize; 6]) -> u64 {
    match i64::from(nr) {
        libc::SYS_clone => args[0] as u64,
        // Of its structure, which begins with the flags.
        libc::SYS_clone3 => {
            direct::bytes(args[0], 8).ok().and_then(|flags| flags.try_into().ok()).map_or(0, u64::from_ne_bytes)
        }
        libc::SYS_vfork => libc::CLONE_VM as u64 | libc::CLONE_VFORK as u64,
        _ => 0,
    }
}
