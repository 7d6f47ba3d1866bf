//! The incremental image: every crash, damage, and images that must be refused.

use std::collections::BTreeMap;

use backing::image::{Image, RawImage, PAGE};
use backing::log::{Identity, Instant};
use rng::Rng;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::rig::{MIB, UUID};
use crate::tape::{after_cut, Event, Tape};

const ID: Identity = Identity { uuid: UUID };
/// Of a memory of 4 GiB and a page.
const PAGES: u64 = (4 << 30) / PAGE + 1;

/// The expected content of an image.
#[derive(Clone, Default, PartialEq, Eq)]
struct Model {
    at: Instant,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Model {
    /// Replaces `n` of the pages of some neighbourhoods, a fifth of them by zeros.
    fn update(&mut self, image: &mut Image<Tape>, rng: &mut Rng, n: u64) -> pram::Result<()> {
        let mut next = self.clone();
        let mut update = image.begin();
        for _ in 0..n {
            let near = [0, 500, 600_000, PAGES - 20][rng.below(4) as usize];
            let page = near + rng.below(20);
            let content = match rng.below(5) {
                0 => vec![0; PAGE as usize],
                _ => content(rng.next()),
            };
            update.write(page, &content)?;
            next.pages.insert(page, content);
        }
        next.pages.retain(|_, content| content.iter().any(|byte| *byte != 0));
        next.at = Instant { commit: next.at.commit + 3, time: next.at.time - 7 };
        update.finish(next.at)?;
        *self = next;
        Ok(())
    }
}

fn content(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..PAGE / 8).flat_map(|_| rng.next().to_le_bytes()).collect()
}

fn create(tape: &Tape) -> Image<Tape> {
    Image::create(tape.clone(), ID, Instant::default()).unwrap()
}

fn open(tape: &Tape) -> pram::Result<Image<Tape>> {
    Image::open(tape.clone(), Some(ID))
}

/// The whole content of an image, read in bulk.
fn all(image: &Image<Tape>) -> pram::Result<Model> {
    let mut pages = BTreeMap::new();
    image.read_all(&mut |page, bytes| {
        assert!(pages.insert(page, bytes.to_vec()).is_none(), "page {page} twice");
        Ok(())
    })?;
    Ok(Model { at: image.instant(), pages })
}

/// The content, read in both ways.
fn opened(tape: &Tape) -> pram::Result<Model> {
    let read = |tape: &Tape| open(tape).and_then(|image| all(&image));
    let (ahead, plain) = (read(&tape.read_at_once()), read(tape));
    match (&ahead, &plain) {
        (Ok(ahead), Ok(plain)) => assert!(ahead == plain, "read ahead, other pages come out"),
        (Err(ahead), Err(plain)) => assert_eq!(ahead.to_string(), plain.to_string()),
        _ => panic!("read ahead {:?}, without {:?}", ahead.err(), plain.err()),
    }
    plain
}

fn refused<T>(result: pram::Result<T>, word: &str) {
    let text = result.err().expect("an error").to_string();
    assert!(text.contains(word), "{text}");
}

/// Every way to read gives the model's content.
fn compare(image: &Image<Tape>, model: &Model) {
    assert!(all(image).unwrap() == *model, "read in bulk");
    assert_eq!(image.stored(), model.pages.len() as u64);
    let mut stored = Vec::new();
    while let Some(page) = image.next_stored(stored.last().map_or(0, |last| last + 1)) {
        stored.push(page);
    }
    assert!(stored.iter().eq(model.pages.keys()));
    let mut buf = vec![1; PAGE as usize];
    for page in [0, 3, 500, 511, 512, 600_005, PAGES - 1].into_iter().chain(stored) {
        let content = model.pages.get(&page);
        assert_eq!(image.read(page, &mut buf).unwrap(), content.is_some());
        assert!(content.map_or(buf.iter().all(|b| *b == 0), |content| *content == buf), "page {page}");
        assert_eq!(image.crc(page), content.map(|content| crc32c::crc32c(content)));
    }
}

#[test]
fn updates_are_what_a_model_says() {
    let (tape, mut model, mut rng) = (Tape::default(), Model::default(), Rng::new(1));
    let mut image = create(&tape);
    compare(&image, &model);
    for n in 0..60 {
        model.update(&mut image, &mut rng, n % 30).unwrap();
        compare(&image, &model);
        if n % 3 == 0 {
            image = open(&tape).unwrap();
            compare(&image, &model);
        }
    }
    let any = Image::open(tape, None).unwrap();
    assert_eq!(any.id(), ID);
    compare(&any, &model);
    assert!(any.stored() > 30);
}

#[test]
fn an_update_that_is_dropped_leaves_the_image_as_it_was() {
    let (tape, mut model, mut rng) = (Tape::default(), Model::default(), Rng::new(2));
    let mut image = create(&tape);
    model.update(&mut image, &mut rng, 20).unwrap();
    let size = image.bytes();
    for _ in 0..10 {
        model.update(&mut image, &mut rng, 20).unwrap();
        let mut update = image.begin();
        for page in 0..600 {
            update.write(page, &content(page)).unwrap();
        }
        let mut before = vec![0; PAGE as usize];
        let stored = update.read(3, &mut before).unwrap();
        assert_eq!(model.pages.get(&3), stored.then_some(&before));
        drop(update);
        compare(&image, &model);
        assert!(opened(&tape).unwrap() == model);
    }
    assert!(image.bytes() <= size + 128 * PAGE, "slots of dropped updates are free again");
}

/// Every place where the power can be cut, with the sectors written since the last flush kept, lost, or torn.
#[test]
fn a_power_cut_leaves_the_old_image_or_the_new_one() {
    let (tape, mut rng) = (Tape::default(), Rng::new(3));
    let mut image = create(&tape);
    let base = tape.with(|s| (s.events.clear(), s.bytes.clone())).1;
    let mut models = vec![Model::default()];
    for n in 0..12 {
        let mut model = models[n].clone();
        model.update(&mut image, &mut rng, [1, 6, 0, 12][n % 4]).unwrap();
        tape.with(|s| s.events.push(Event::Acknowledged));
        models.push(model);
        if n % 5 == 4 {
            image = open(&tape).unwrap();
        }
    }
    let events = tape.with(|s| s.events.clone());
    let (mut checked, mut old, mut new) = (0, 0, 0);
    for cut in 0..=events.len() {
        for seed in 0..8 {
            let (bytes, acknowledged) = after_cut(&base, &events[..cut], seed);
            let found = opened(&Tape::of(bytes)).unwrap_or_else(|e| panic!("cut {cut}, seed {seed}: {e}"));
            let is = |n: usize| models.get(n).is_some_and(|model| *model == found);
            assert!(is(acknowledged) || is(acknowledged + 1), "cut {cut}, seed {seed}: {:?}", found.at);
            (old, new) = (old + usize::from(is(acknowledged)), new + usize::from(is(acknowledged + 1)));
            checked += 1;
        }
    }
    assert!(checked > 400 && old > 100 && new > 20, "{checked} {old} {new}");
}

/// After a power cut follow updates over the torn image, and another cut.
#[test]
fn an_image_survives_one_power_cut_after_the_other() {
    let mut rng = Rng::new(4);
    let (mut disk, mut model) = (Tape::default(), Model::default());
    create(&disk);
    for round in 0..2000 {
        let base = disk.bytes();
        let mut image = open(&disk).unwrap();
        let mut models = vec![model];
        for n in 0..2 {
            let mut next = models[n].clone();
            let size = rng.below(10);
            next.update(&mut image, &mut rng, size).unwrap();
            models.push(next);
        }
        let events = disk.with(|s| s.events.clone());
        let cut = rng.below(events.len() as u64 + 1) as usize;
        disk = Tape::of(after_cut(&base, &events[..cut], 2 + rng.next() % 1000).0);
        let found = opened(&disk).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(models.contains(&found), "round {round}: {:?}", found.at);
        model = found;
    }
}

/// An image of few slots, and its content.
fn small() -> (Tape, Model) {
    let (tape, mut model, mut rng) = (Tape::default(), Model::default(), Rng::new(5));
    let mut image = create(&tape);
    model.update(&mut image, &mut rng, 6).unwrap();
    model.update(&mut image, &mut rng, 2).unwrap();
    (tape, model)
}

/// A flipped bit gives an error or the right answer.
#[test]
fn damage_is_noticed_wherever_it_is() {
    let (tape, model) = small();
    let bytes = tape.bytes();
    let (mut errors, mut unharmed) = (0, 0);
    let headers = (0..2).flat_map(|copy| copy * 4096..copy * 4096 + 96);
    let slots = (2 * 4096..bytes.len()).step_by(4096).flat_map(|slot| {
        let is_table = !model.pages.values().any(|page| *page == bytes[slot..slot + 4096]);
        (slot..slot + 4096).step_by(if is_table { 1 } else { 37 })
    });
    for at in headers.chain(slots) {
        tape.with(|s| s.bytes[at] ^= 1 << (at % 8));
        match opened(&tape) {
            Ok(found) => {
                assert!(found == model, "byte {at} is damaged and the answer wrong");
                unharmed += 1;
            }
            Err(e) => {
                assert!(e.to_string().contains("damaged at byte"), "{e}");
                errors += 1;
            }
        }
        tape.with(|s| s.bytes[at] ^= 1 << (at % 8));
    }
    assert!(errors > 10_000 && unharmed >= 192, "{errors} {unharmed}: no header is needed if the other is whole");
}

#[test]
fn a_header_that_is_damaged_is_replaced_by_the_next_update() {
    for copy in [0, 4096] {
        let (tape, mut model) = small();
        tape.with(|s| s.bytes[copy + 50] ^= 1);
        let mut image = open(&tape).unwrap();
        model.update(&mut image, &mut Rng::new(6), 3).unwrap();
        for damaged in [0, 4096] {
            let tape = tape.copy();
            tape.with(|s| s.bytes[damaged + 50] ^= 1);
            assert!(opened(&tape).unwrap() == model);
        }
    }
}

/// Both headers can be read, but were forged or come from elsewhere.
#[test]
fn an_image_that_does_not_belong_is_refused() {
    let (tape, _) = small();
    let open_as = |id: Identity| Image::open(tape.clone(), Some(id));
    refused(open_as(Identity { uuid: [9; 16] }), "another pool");
    let forged = |change: fn(&mut RawImage)| {
        let tape = tape.copy();
        tape.with(|s| {
            for header in s.bytes.chunks_mut(4096).take(2) {
                let (mut raw, _) = RawImage::read_from_prefix(header).unwrap();
                change(&mut raw);
                raw.crc = crc32c::crc32c(&raw.as_bytes()[..76]);
                header[..80].copy_from_slice(raw.as_bytes());
            }
        });
        Image::open(tape, None)
    };
    assert!(forged(|_| ()).is_ok());
    refused(forged(|raw| raw.version = 1), "format version 1, this program reads version 2");
    refused(forged(|raw| raw.fingerprint ^= 1), "another layout");
    refused(forged(|raw| raw.page = 8192), "another layout");
    refused(forged(|raw| raw.root.slot = 1), "contradict");
    refused(forged(|raw| raw.last = 3), "contradict");
    refused(forged(|raw| raw.last = u32::MAX), "truncated");
    refused(forged(|raw| raw.root.slot = 2), "damaged");
    refused(open(&Tape::of(vec![0; 1 << 16])), "no header");
    refused(open(&Tape::default()), "reading the image's header");
    let tape = Tape::default();
    let mut image = Image::create(tape.clone(), ID, Instant::default()).unwrap();
    let mut update = image.begin();
    update.write((1 << 35) - 1, &content(1)).unwrap();
    assert!(update.write(1 << 35, &content(1)).is_err() && update.write(0, &[1]).is_err());
    update.finish(Instant::default()).unwrap();
    let image = Image::open(tape, Some(ID)).unwrap();
    assert_eq!((image.next_stored(0), image.bytes()), (Some((1 << 35) - 1), 7 * PAGE));
}

#[test]
fn a_truncated_image_is_refused() {
    let (tape, _) = small();
    let image = open(&tape).unwrap();
    let len = image.bytes() as usize;
    for short in [len - 1, len - 4096, 8192, 8191, 4200, 50] {
        let bytes = tape.bytes()[..short].to_vec();
        let result = open(&Tape::of(bytes));
        refused(result, if short < 88 { "reading the image's header" } else { "truncated" });
    }
}

#[test]
fn a_sector_that_cannot_be_read_costs_only_what_is_in_it() {
    let (tape, mut model, mut rng) = (Tape::default(), Model::default(), Rng::new(7));
    let mut image = create(&tape);
    model.update(&mut image, &mut rng, 40).unwrap();
    let mut lost = 0;
    for slot in 0..image.bytes() / PAGE {
        tape.with(|s| s.bad_sector = Some(slot * PAGE));
        if slot < 2 {
            assert!(opened(&tape).unwrap() == model, "one header suffices");
            continue;
        }
        let mut buf = vec![0; PAGE as usize];
        for (page, content) in &model.pages {
            match image.read(*page, &mut buf) {
                Ok(_) => assert!(buf == *content),
                Err(e) => {
                    let bytes = format!("bytes {} to {} of", page * PAGE, (page + 1) * PAGE);
                    assert!(e.to_string().contains(&bytes), "{e}");
                    refused(opened(&tape), &bytes);
                    lost += 1;
                }
            }
        }
    }
    assert_eq!(lost, model.pages.len());
}

/// Every call to the disk fails once, in every way; the update says so, and the image is whole.
#[test]
fn after_a_failure_nothing_is_written_any_more() {
    for errno in [Errno::IO, Errno::NOSPC] {
        let (mut calls, mut old, mut new, mut full) = (0, 0, 0, 0);
        loop {
            let (tape, model) = small();
            let (mut image, mut next) = (open(&tape).unwrap(), model.clone());
            tape.with(|s| s.fuse = Some((calls, errno)));
            let Err(e) = next.update(&mut image, &mut Rng::new(8), 30) else { break };
            if matches!(e, pram::Error::DiskFull(_)) {
                assert_eq!(errno, Errno::NOSPC);
                tape.with(|s| s.fuse = None);
                let mut later = model.clone();
                assert!(opened(&tape).unwrap() == model, "nothing leads to what was written");
                later.update(&mut image, &mut Rng::new(9), 30).expect("there is room again");
                assert!(opened(&tape).unwrap() == later);
                (calls, full) = (calls + 1, full + 1);
                continue;
            }
            assert!(e.to_string().contains(&errno.to_string()), "{e}");
            // The disk works again, but may have dropped anything.
            tape.with(|s| s.fuse = None);
            let events = tape.with(|s| s.events.len());
            refused(next.clone().update(&mut image, &mut Rng::new(9), 1), "cannot be changed");
            refused(next.clone().update(&mut image, &mut Rng::new(9), 0), "cannot be changed");
            assert_eq!(tape.with(|s| s.events.len()), events, "it was not touched");
            let (found, kept) = (opened(&tape).unwrap(), all(&image).unwrap());
            if found == model {
                old += 1;
                assert!(kept == model);
            } else {
                new += 1;
                assert_eq!(
                    (found.at.commit, found.pages.len() as u64),
                    (model.at.commit + 3, open(&tape).unwrap().stored())
                );
                assert!(kept == model || kept == found);
            }
            calls += 1;
        }
        match errno {
            Errno::NOSPC => assert!(old >= 1 && new >= 2 && full >= 1, "{old} {new} {full}"),
            _ => assert!(old >= 3 && new >= 2 && full == 0, "{old} {new} {full}"),
        }
    }
}

#[test]
fn slots_are_used_again() {
    let (tape, mut rng) = (Tape::default(), Rng::new(10));
    let mut image = create(&tape);
    let pages = 100;
    for n in 0..1000u64 {
        let mut update = image.begin();
        for _ in 0..20 {
            update.write(rng.below(pages), &content(n)).unwrap();
        }
        update.finish(Instant { commit: n, time: 0 }).unwrap();
        if n % 100 == 99 {
            tape.with(|s| s.events.clear());
            image = open(&tape).unwrap();
        }
    }
    assert_eq!(image.stored(), pages);
    let file = tape.with(|s| s.bytes.len() as u64);
    assert!(file <= 2 * (pages + 20 + 10) * PAGE + 64 * PAGE, "{} pages", file / PAGE);
}

/// Replaces pages in one update; returns how many calls to the disk that took.
fn fill(tape: &Tape, image: &mut Image<Tape>, pages: impl Iterator<Item = u64>) -> usize {
    tape.with(|s| s.events.clear());
    let mut update = image.begin();
    pages.for_each(|page| update.write(page, &[page as u8 | 1; PAGE as usize]).unwrap());
    update.finish(Instant::default()).unwrap();
    tape.with(|s| {
        let large = |event: &Event| matches!(event, Event::Write(_, bytes) if bytes.len() as u64 > MIB);
        assert!(!s.events.iter().any(large));
        s.events.len()
    })
}

/// Opens and reads everything; returns how many pages there were, and calls to the disk.
fn read(tape: &Tape) -> (usize, usize) {
    tape.with(|s| s.reads = 0);
    let pages = opened(tape).unwrap().pages.len();
    (pages, tape.with(|s| s.reads))
}

/// Few and large calls, also when slots are scattered.
#[test]
fn disks_see_large_reads_and_writes() {
    let (tape, pages) = (Tape::default(), 2048);
    let mut image = create(&tape);
    // Eight of pages, one of the last tables, two headers, two flushes.
    assert!(fill(&tape, &mut image, 0..pages) <= 13);
    let (found, reads) = read(&tape);
    assert!(found as u64 == pages && reads <= 2 + 1 + 3 + 9, "{reads}");
    // Single holes everywhere: they are not worth filling.
    fill(&tape, &mut image, (0..pages).step_by(5));
    assert!(fill(&tape, &mut image, 0..300) <= 12);
    let (found, reads) = read(&tape);
    assert!(found as u64 == pages && reads <= 30, "{reads}");
}
