//! The dispatch over a real pool, without a kernel: its answers, and that no request can break it.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conquest::FormatOptions;
use conquest::{OpenOptions, Pool};
use rng::Rng;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::*;
use crate::absent::VALID;
use crate::convert::FOREVER;
use crate::dev;
use crate::notify::Notifier;
use crate::options::{MountOptions, Transport};
use crate::request::{Answer, Request};
use crate::server::Server;
use crate::session::Mount;
use crate::sys::Device;

struct Lab {
    server: Arc<Server>,
    data: Vec<u8>,
    _dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Lab {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let how = FormatOptions { root_owner: (0, 0), ..FormatOptions::on(conquest::MediumKind::Battery, 16 << 20) };
        let at = dir.path().join("pool");
        Pool::format(&at, &how).unwrap();
        let pool = Arc::new(Pool::open(&at, &OpenOptions::default()).unwrap());
        // Notifications go nowhere.
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let notifier = Notifier::new(Arc::new(Device::from(OwnedFd::from(null))), VERSION.1);
        let server = Arc::new(Server::new(pool, notifier, String::new(), &MountOptions::default()).unwrap());
        Lab { server, data: vec![0; 1 << 20], _dir: dir }
    }

    fn send(&mut self, opcode: u32, nodeid: u64, args: &[u8], payload: &[u8], extlen: u16) -> Option<Answer> {
        self.data[..payload.len()].copy_from_slice(payload);
        let head = InHeader { opcode, nodeid, unique: 1, total_extlen: extlen, ..Default::default() };
        self.server.attempt(&mut Request { head, args, data: &mut self.data, len: payload.len() })
    }

    fn ask(&mut self, opcode: Opcode, nodeid: u64, args: &[u8], payload: &[u8]) -> Answer {
        self.send(opcode as u32, nodeid, args, payload, 0).expect("an answer")
    }

    fn reply<T: FromBytes>(&self) -> T {
        T::read_from_prefix(&self.data).map_err(|_| "size").unwrap().0
    }

    fn make(&mut self, name: &[u8]) -> u64 {
        let args = MknodIn { mode: 0o100644, ..Default::default() };
        assert_eq!(self.ask(Opcode::Mknod, ROOT_ID, args.as_bytes(), name), Ok(128));
        self.reply::<EntryOut>().nodeid
    }

    fn write(&mut self, node: u64, args: WriteIn, content: &[u8]) -> Answer {
        self.ask(Opcode::Write, node, WriteIn { size: content.len() as u32, ..args }.as_bytes(), content)
    }

    fn read(&mut self, node: u64) -> Vec<u8> {
        let args = ReadIn { size: 4096, ..Default::default() };
        let len = self.ask(Opcode::Read, node, args.as_bytes(), &[]).unwrap();
        self.data[..len].to_vec()
    }
}

#[test]
fn what_the_kernel_remembers_is_answered_so() {
    let mut lab = Lab::new();
    for opcode in [Opcode::Open, Opcode::Flush, Opcode::Access, Opcode::Fsync] {
        assert_eq!(lab.ask(opcode, ROOT_ID, &[0; 64], b"f\0"), Err(Errno::NOSYS), "{opcode:?}");
    }
    assert_eq!(lab.ask(Opcode::Opendir, ROOT_ID, &[0; 8], &[]), Ok(16));
    assert_eq!(lab.reply::<OpenOut>().open_flags, 0, "no listing is kept");
    assert_eq!(lab.send(4095, ROOT_ID, &[], &[], 0), Some(Err(Errno::NOSYS)), "an unknown opcode");
    assert_eq!(lab.send(Opcode::Forget as u32, 77, ForgetIn { nlookup: 1 }.as_bytes(), &[], 0), None);
}

#[test]
fn absent_names_are_remembered_and_made_ones_found() {
    let mut lab = Lab::new();
    assert_eq!(lab.ask(Opcode::Lookup, ROOT_ID, &[], b"f\0"), Ok(128));
    let absent: EntryOut = lab.reply();
    assert_eq!((absent.nodeid, absent.entry_valid), (0, VALID));
    let node = lab.make(b"f\0");
    assert_eq!(lab.ask(Opcode::Lookup, ROOT_ID, &[], b"f\0"), Ok(128));
    let found: EntryOut = lab.reply();
    assert_eq!((found.nodeid, found.attr.mode), (node, 0o100644));
    // Another process was first: the kernel must look again.
    let args = MknodIn { mode: 0o100600, ..Default::default() };
    assert_eq!(lab.ask(Opcode::Mknod, ROOT_ID, args.as_bytes(), b"f\0"), Err(Errno::STALE));
}

/// Which names a recall has the kernel forget.
#[test]
fn names_that_are_not_there_are_noted_until_they_come() {
    let mut lab = Lab::new();
    for name in [&b"a\0"[..], b"b\0", b"a\0", b"c\0"] {
        lab.ask(Opcode::Lookup, ROOT_ID, &[], name).unwrap();
    }
    lab.make(b"b\0");
    let rename = RenameIn { newdir: ROOT_ID };
    assert_eq!(lab.ask(Opcode::Rename, ROOT_ID, rename.as_bytes(), b"b\0c\0"), Ok(0));
    assert_eq!(lab.server.notifier.absent.take(ROOT_ID), [b"a"[..].into()]);
}

#[test]
fn what_is_recalled_is_valid_for_no_time_until_it_is_taken_back() {
    let mut lab = Lab::new();
    let node = lab.make(b"f\0");
    let server = lab.server.clone();
    let session = server.fs().session();
    let valid = |lab: &mut Lab| {
        lab.ask(Opcode::Getattr, node, &[0; 16], &[]).unwrap();
        let attr = lab.reply::<AttrOut>().attr_valid;
        lab.ask(Opcode::Lookup, ROOT_ID, &[], b"f\0").unwrap();
        let found: EntryOut = lab.reply();
        assert!(found.attr_valid <= attr && found.entry_valid == FOREVER);
        attr
    };
    assert_eq!(valid(&mut lab), FOREVER);
    session.begin_recall(node);
    assert_eq!(valid(&mut lab), 0);
    session.end_recall(node);
    assert_eq!((valid(&mut lab), valid(&mut lab)), (0, 0));
    lab.read(node);
    assert_eq!(valid(&mut lab), FOREVER, "its content may be kept, and whoever changes it says so");
    session.begin_recall(node);
    session.end_recall(node);
    lab.write(node, WriteIn::default(), b"x").unwrap();
    assert_eq!(valid(&mut lab), FOREVER);

    let absent = |lab: &mut Lab| {
        lab.ask(Opcode::Lookup, ROOT_ID, &[], b"none\0").unwrap();
        (lab.reply::<EntryOut>().entry_valid, lab.server.notifier.absent.take(ROOT_ID).len())
    };
    assert_eq!(absent(&mut lab), (VALID, 1));
    session.begin_recall(ROOT_ID);
    assert_eq!(absent(&mut lab), (0, 0));
    session.end_recall(ROOT_ID);
    assert_eq!(absent(&mut lab), (0, 0));
    session.take_back(ROOT_ID);
    assert_eq!(absent(&mut lab), (VALID, 1));
}

#[test]
fn appends_go_to_the_end_but_write_back_does_not() {
    let mut lab = Lab::new();
    let node = lab.make(b"f\0");
    assert_eq!(lab.write(node, WriteIn::default(), b"hello"), Ok(8));
    let append = WriteIn { flags: libc::O_APPEND as u32, ..Default::default() };
    lab.write(node, append, b" there").unwrap();
    assert_eq!(lab.read(node), b"hello there");
    lab.write(node, WriteIn { write_flags: WRITE_CACHE, ..append }, b"H").unwrap();
    assert_eq!(lab.read(node), b"Hello there");
}

#[test]
fn access_times_are_left_where_the_caller_wants_it() {
    let mut lab = Lab::new();
    let node = lab.make(b"f\0");
    lab.write(node, WriteIn::default(), b"text").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    let mut read = |flags: i32| {
        let args = ReadIn { size: 4, flags: flags as u32, ..Default::default() };
        assert_eq!(lab.ask(Opcode::Read, node, args.as_bytes(), &[]), Ok(4));
        let attr = lab.server.fs().getattr(node).unwrap();
        attr.atime != attr.btime
    };
    assert!(!read(libc::O_NOATIME));
    assert!(read(0));
}

#[test]
fn a_removed_file_lives_until_it_is_forgotten() {
    let mut lab = Lab::new();
    let node = lab.make(b"f\0");
    lab.write(node, WriteIn::default(), b"kept").unwrap();
    assert_eq!(lab.ask(Opcode::Unlink, ROOT_ID, &[], b"f\0"), Ok(0));
    assert_eq!(lab.read(node), b"kept");
    assert_eq!(lab.ask(Opcode::Lookup, node, &[], b".\0"), Err(Errno::STALE), "by a file handle");
    let forget = [ForgetOne { nodeid: node, nlookup: 1 }];
    let args = BatchForgetIn { count: 1, dummy: 0 };
    assert_eq!(lab.send(Opcode::BatchForget as u32, 0, args.as_bytes(), forget.as_bytes(), 0), None);
    assert!(lab.ask(Opcode::Getattr, node, &[0; 16], &[]).is_err());
}

#[test]
fn directories_are_read_in_pieces_of_any_size() {
    let mut lab = Lab::new();
    let mut names: Vec<String> = (0..40).map(|n| format!("name-{}", "x".repeat(n))).collect();
    for name in &names {
        lab.make(format!("{name}\0").as_bytes());
    }
    names.extend([".".into(), "..".into()]);
    names.sort();
    for (opcode, prefix) in [(Opcode::Readdir, 0), (Opcode::Readdirplus, 128)] {
        for size in [prefix + 80, 700, 1 << 16] {
            let mut found = Vec::new();
            let mut args = ReadIn { size: size as u32, ..Default::default() };
            loop {
                let len = lab.ask(opcode, ROOT_ID, args.as_bytes(), &[]).unwrap();
                let mut at = 0;
                while at < len {
                    let entry = Dirent::read_from_prefix(&lab.data[at + prefix..]).map_err(|_| "size").unwrap().0;
                    let name = at + prefix + 24;
                    let bytes = &lab.data[name..name + entry.namelen as usize];
                    found.push(String::from_utf8(bytes.to_vec()).unwrap());
                    args.offset = entry.off;
                    at += (prefix + 24 + entry.namelen as usize).next_multiple_of(8);
                }
                if len == 0 {
                    break;
                }
            }
            found.sort();
            assert_eq!(found, names, "{opcode:?} by {size}");
        }
        let small = ReadIn { size: 16, ..Default::default() };
        assert_eq!(lab.ask(opcode, ROOT_ID, small.as_bytes(), &[]), Err(Errno::INVAL));
    }
}

/// The kernel must not believe its size, see `stale_attrs`.
#[test]
fn a_file_that_is_written_past_the_page_cache_is_listed_without_attributes() {
    let mut lab = Lab::new();
    let node = lab.make(b"f\0");
    let listed = |lab: &mut Lab| {
        let args = ReadIn { size: 4096, ..Default::default() };
        let len = lab.ask(Opcode::Readdirplus, ROOT_ID, args.as_bytes(), &[]).unwrap();
        let found = lab.data[..len].chunks(160).map(|entry| EntryOut::read_from_prefix(entry).unwrap().0.nodeid);
        found.collect::<Vec<u64>>()
    };
    assert_eq!(listed(&mut lab).last(), Some(&node));
    let direct = WriteIn { flags: libc::O_DIRECT as u32, ..Default::default() };
    lab.write(node, direct, b"more").unwrap();
    assert_eq!(listed(&mut lab).last(), Some(&0));
}

#[test]
fn extended_attributes_tell_their_size_first() {
    let mut lab = Lab::new();
    let node = lab.make(b"f\0");
    let set = SetxattrIn { size: 5, ..Default::default() };
    assert_eq!(lab.ask(Opcode::Setxattr, node, set.as_bytes(), b"user.a\0value"), Ok(0));
    let mut get = |size, name: &[u8]| lab.ask(Opcode::Getxattr, node, GetxattrIn { size, padding: 0 }.as_bytes(), name);
    assert_eq!(get(0, b"user.a\0"), Ok(8));
    assert_eq!(get(4, b"user.a\0"), Err(Errno::RANGE));
    assert_eq!(get(64, b"user.b\0"), Err(Errno::NODATA));
    assert_eq!(get(64, b"user.a\0"), Ok(5));
    assert_eq!(lab.data[..5], *b"value");
}

/// A panic would be answered with EIO; no bytes of a request may cause one.
#[test]
fn senseless_requests_get_an_error_and_break_nothing() {
    let mut lab = Lab::new();
    lab.make(b"f\0");
    let mut rng = Rng::new(1);
    let mut random = move || rng.next();
    for round in 0..40_000 {
        let opcode = (random() % 60) as u32;
        let mut args: Vec<u8> = (0..random() % 96).map(|_| random() as u8).collect();
        if round % 2 == 0 {
            // Small numbers come further than large ones.
            args.chunks_mut(8).for_each(|word| word[1..].fill(0));
        }
        let payload: Vec<u8> = (0..random() % 40).map(|_| (random() % 4) as u8 * 32).collect();
        let answer = lab.send(opcode, random() % 4, &args, &payload, (random() % 8) as u16);
        // INIT is refused so, on purpose.
        let init = opcode == Opcode::Init as u32;
        assert!(init || answer != Some(Err(Errno::IO)), "opcode {opcode}, {args:?}, {payload:?}");
        if let Some(Ok(len)) = answer {
            assert!(len <= lab.data.len());
        }
    }
    assert_eq!(lab.ask(Opcode::Getattr, ROOT_ID, &[0; 16], &[]), Ok(104));
}

/// The other end of the socket that a transport takes for /dev/fuse.
struct Kernel(OwnedFd);

impl Kernel {
    fn new() -> (Kernel, Device) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
        (Kernel(ours), Device::from(theirs))
    }

    fn ask(&self, opcode: Opcode, nodeid: u64, unique: u64, parts: &[&[u8]]) {
        let body = parts.concat();
        let len = (std::mem::size_of::<InHeader>() + body.len()) as u32;
        let head = InHeader { len, opcode: opcode as u32, nodeid, unique, ..Default::default() };
        rustix::io::write(&self.0, &[head.as_bytes(), &body].concat()).expect("write");
    }

    /// The next answer.
    fn answer(&self) -> OutHeader {
        let mut answer = [0; 4096];
        rustix::io::read(&self.0, &mut answer).expect("read");
        OutHeader::read_from_prefix(&answer).map_err(|_| "size").unwrap().0
    }
}

/// A reader that waited itself had no time for the FORGETs that would have freed space.
#[test]
fn who_waits_for_room_does_not_keep_it_from_coming() {
    let mut lab = Lab::new();
    let [gone, grows] = [b"gone\0", b"more\0"].map(|name| lab.make(name));
    let content = vec![7; 64 << 10];
    let mut at = 0;
    while lab.write(gone, WriteIn { offset: at, ..Default::default() }, &content).is_ok() {
        at += content.len() as u64;
    }
    let (kernel, device) = Kernel::new();
    let (device, server) = (Arc::new(device), lab.server.clone());
    let works = std::thread::spawn({
        let server = server.clone();
        move || server.work()
    });
    let reads = std::thread::spawn({
        let server = server.clone();
        move || dev::serve(&device, &server)
    });
    kernel.ask(Opcode::Unlink, ROOT_ID, 1, &[b"gone\0"]);
    assert_eq!(kernel.answer().unique, 1);
    let write = WriteIn { size: content.len() as u32, ..Default::default() };
    kernel.ask(Opcode::Write, grows, 2, &[write.as_bytes(), &content]);
    kernel.ask(Opcode::Forget, gone, 3, &[ForgetIn { nlookup: 1 }.as_bytes()]);
    let answer = kernel.answer();
    assert_eq!((answer.unique, answer.error), (2, 0));
    drop(kernel);
    reads.join().unwrap().expect_err("the end of the socket is none that it knows");
    server.stop();
    works.join().unwrap();
}

/// A transport that is refused and replaced by another once left a thread behind, which held the pool open.
#[test]
fn a_mount_that_cannot_start_keeps_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let at = dir.path().join("pool");
    let how = FormatOptions { backing: Some(".".into()), ..FormatOptions::on(conquest::MediumKind::Battery, 8 << 20) };
    Pool::format(&at, &how).unwrap();
    let pool = Arc::new(Pool::open(&at, &OpenOptions::default()).unwrap());
    let (kernel, device) = Kernel::new();
    let init = InitIn { major: 7, minor: VERSION.1, flags: u32::MAX, flags2: u32::MAX, ..Default::default() };
    kernel.ask(Opcode::Init, 0, 1, &[init.as_bytes()]);
    // No socket understands the commands of the ring.
    let refused =
        Mount::start(pool.clone(), device, dir.path(), String::new(), Transport::Uring, &MountOptions::default());
    let error = refused.err().expect("a refusal").to_string();
    assert!(error.contains("io_uring"), "{error}");
    assert_eq!(kernel.answer().error, 0);
    let until = Instant::now() + Duration::from_secs(20);
    while Arc::strong_count(&pool) > 1 {
        assert!(Instant::now() < until, "somebody has the pool still");
        std::thread::sleep(Duration::from_millis(1));
    }
}
