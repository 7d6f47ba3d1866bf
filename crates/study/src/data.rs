//! The size of small files when compressed: a sample of them by codec (mramfs, chapter 4).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

use lz4::block::{compress_to_buffer, decompress_to_buffer, CompressionMode};
use report::cells::Table;
use report::section::Plot;
use report::Section;

use crate::clock::Busy;
use crate::metadata::percent;
use crate::quietly;
use crate::scan::{self, Tree};

/// The largest files in the sample, as in mramfs.
pub const SMALL: u64 = 128 << 10;
/// A file stays plain if less than an eighth would be saved.
const WORTH: usize = 8;
/// Bytes of a dictionary, and of its training sample.
const DICTIONARY: usize = 64 << 10;
const TRAINED_ON: usize = 16 << 20;
/// Size classes of the figures: powers of two from this one on.
const FIRST_CLASS: u32 = 9;

/// Some of the small files of a tree, with their content.
pub struct Sample {
    files: Vec<Vec<u8>>,
    /// Others, for the dictionary.
    others: Vec<Vec<u8>>,
    /// The number of all small files, and their bytes.
    pub count: u64,
    pub bytes: u64,
    /// Bytes of all files, by size class.
    by_class: BTreeMap<u32, u64>,
    pub unreadable: u64,
}

impl Sample {
    /// Reads up to about `most` bytes of small files, spread over the tree, and as much again (at most `TRAINED_ON`)
    /// for dictionaries.
    pub fn read(tree: &Tree, most: u64, seen: &mut dyn FnMut(u64, u64)) -> Sample {
        let small: Vec<_> = tree.files.iter().filter(|(_, size)| *size <= SMALL).collect();
        let bytes = small.iter().map(|(_, size)| size).sum::<u64>();
        let mut by_class = BTreeMap::new();
        small.iter().for_each(|(_, size)| *by_class.entry(class(*size)).or_default() += size);
        let mut sample =
            Sample { files: Vec::new(), others: Vec::new(), count: small.len() as u64, bytes, by_class, unreadable: 0 };
        let (mut order, mut rng): (Vec<usize>, _) = ((0..small.len()).collect(), rng::Rng::new(1));
        rng.shuffle(&mut order);
        let (mut read, mut trained) = (0, 0);
        for n in order {
            let (path, size) = small[n];
            let is_other = trained < TRAINED_ON as u64 && trained < read;
            if read >= most && !is_other {
                break;
            }
            seen(read.min(most), most.min(bytes));
            let mut content = Vec::new();
            match quietly::open_file(path).and_then(|file| File::from(file).take(SMALL).read_to_end(&mut content)) {
                Ok(0) => {}
                Ok(_) if is_other => {
                    trained += size;
                    sample.others.push(content);
                }
                Ok(_) => {
                    read += size;
                    sample.files.push(content);
                }
                Err(_) => sample.unreadable += 1,
            }
        }
        sample
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// A dictionary trained on the other files; none if there are too few.
    fn dictionary(&self) -> Option<Vec<u8>> {
        // A training sample should see many files, so the long ones count in part.
        let begins: Vec<&[u8]> = self.others.iter().map(|file| &file[..file.len().min(DICTIONARY)]).collect();
        zstd::dict::from_samples(&begins, DICTIONARY).ok()
    }

    /// Measures all codecs on all files.
    pub fn measure(&self, seen: &mut dyn FnMut(&str)) -> Vec<Measured> {
        let dictionary = self.dictionary();
        let mut codecs = vec![Codec::Lz4, Codec::Lz4Hc(3), Codec::Zstd(1), Codec::Zstd(3), Codec::Zstd(7)];
        if let Some(dictionary) = &dictionary {
            codecs.extend([Codec::ZstdWith(1, dictionary), Codec::ZstdWith(3, dictionary)]);
        }
        let measure = |codec: Codec| {
            seen(&codec.name());
            Measured::of(codec, &self.files)
        };
        codecs.into_iter().map(measure).collect()
    }
}

/// The size class of `size` bytes: the exponent of the next power of two.
fn class(size: u64) -> u32 {
    size.max(1).next_power_of_two().trailing_zeros().max(FIRST_CLASS)
}

#[derive(Clone, Copy)]
enum Codec<'a> {
    Lz4,
    Lz4Hc(i32),
    Zstd(i32),
    ZstdWith(i32, &'a [u8]),
}

impl Codec<'_> {
    fn name(&self) -> String {
        match self {
            Codec::Lz4 => "lz4".into(),
            Codec::Lz4Hc(level) => format!("lz4-hc {level}"),
            Codec::Zstd(level) => format!("zstd {level}"),
            Codec::ZstdWith(level, _) => format!("zstd {level}, dictionary"),
        }
    }
}

/// A codec for both directions.
struct Coder<'a> {
    codec: Codec<'a>,
    zstd: Option<(zstd::bulk::Compressor<'a>, zstd::bulk::Decompressor<'a>)>,
}

impl<'a> Coder<'a> {
    fn new(codec: Codec<'a>) -> Option<Coder<'a>> {
        use zstd::bulk::{Compressor, Decompressor};
        let zstd = match codec {
            Codec::Zstd(level) => Some((Compressor::new(level).ok()?, Decompressor::new().ok()?)),
            Codec::ZstdWith(level, dictionary) => {
                let one = Compressor::with_dictionary(level, dictionary).ok()?;
                Some((one, Decompressor::with_dictionary(dictionary).ok()?))
            }
            _ => None,
        };
        Some(Coder { codec, zstd })
    }

    /// Appends `plain` in coded form; returns its length.
    fn code(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let at = out.len();
        out.resize(at + plain.len() + plain.len() / 128 + 1024, 0);
        let room = &mut out[at..];
        let len = match (&mut self.zstd, self.codec) {
            (Some((zstd, _)), _) => zstd.compress_to_buffer(plain, room).ok(),
            (None, Codec::Lz4Hc(level)) => {
                compress_to_buffer(plain, Some(CompressionMode::HIGHCOMPRESSION(level)), false, room).ok()
            }
            _ => compress_to_buffer(plain, None, false, room).ok(),
        };
        out.truncate(at + len.unwrap_or(0));
        len
    }

    fn decode(&mut self, coded: &[u8], out: &mut [u8]) -> Option<usize> {
        match &mut self.zstd {
            Some((_, zstd)) => zstd.decompress_to_buffer(coded, out).ok(),
            None => decompress_to_buffer(coded, Some(out.len() as i32), out).ok(),
        }
    }
}

/// The results of a codec.
pub struct Measured {
    pub name: String,
    pub plain: u64,
    /// Bytes when coded, or plain where coding does not pay.
    pub coded: u64,
    /// Bytes of memory in a pool, plain and coded.
    plain_memory: u64,
    memory: u64,
    /// Files that stay plain.
    pub stay: u64,
    /// MB per second.
    pub compress: f64,
    pub decompress: f64,
    by_class: BTreeMap<u32, Class>,
}

/// Files of a size class: bytes plain and coded, the number that pay, and seconds.
#[derive(Clone, Copy, Default)]
struct Class {
    plain: u64,
    coded: u64,
    decoded: u64,
    coding: f64,
    decoding: f64,
}

impl Class {
    fn add(&mut self, other: &Class) {
        self.plain += other.plain;
        self.coded += other.coded;
        self.decoded += other.decoded;
        self.coding += other.coding;
        self.decoding += other.decoding;
    }
}

impl Measured {
    fn of(codec: Codec, files: &[Vec<u8>]) -> Measured {
        let mut measured = Measured {
            name: codec.name(),
            plain: 0,
            coded: 0,
            plain_memory: 0,
            memory: 0,
            stay: 0,
            compress: 0.0,
            decompress: 0.0,
            by_class: BTreeMap::new(),
        };
        let Some(mut coder) = Coder::new(codec) else { return measured };
        let mut by_class: BTreeMap<u32, Vec<&[u8]>> = BTreeMap::new();
        files.iter().for_each(|file| by_class.entry(class(file.len() as u64)).or_default().push(file));
        let mut total = Class::default();
        for (class, files) in by_class {
            let of_class = measured.class(&mut coder, &files);
            total.add(&of_class);
            measured.by_class.insert(class, of_class);
        }
        let rate = |bytes: u64, seconds: f64| bytes as f64 / 1e6 / f64::max(seconds, 1e-9);
        (measured.plain, measured.coded) = (total.plain, total.coded);
        measured.compress = rate(total.plain, total.coding);
        measured.decompress = rate(total.decoded, total.decoding);
        measured
    }

    /// Codes all files of a size class, then decodes all of them: so the clock is not read for each file.
    fn class(&mut self, coder: &mut Coder, files: &[&[u8]]) -> Class {
        let plain = files.iter().map(|file| file.len() as u64).sum();
        let mut all = Vec::with_capacity(plain as usize * 2 + (64 << 10));
        let mut lens = Vec::with_capacity(files.len());
        let begin = Busy::now();
        for file in files {
            lens.push(coder.code(file, &mut all));
        }
        let coding = begin.seconds();
        let mut again = vec![0; SMALL as usize];
        let mut class = Class { plain, coding, ..Class::default() };
        let mut at = 0;
        let mut worth: Vec<(&[u8], &[u8])> = Vec::new();
        for (file, len) in files.iter().zip(lens) {
            let coded = &all[at..at + len.unwrap_or(0)];
            at += coded.len();
            self.count_memory(file.len() as u64, len.map(|len| len as u64));
            if len.is_some() && coded.len() <= file.len() - file.len() / WORTH {
                class.coded += coded.len() as u64;
                class.decoded += file.len() as u64;
                worth.push((file, coded));
            } else {
                class.coded += file.len() as u64;
                self.stay += 1;
            }
        }
        let begin = Busy::now();
        for (file, coded) in &worth {
            std::hint::black_box(coder.decode(coded, &mut again[..file.len()]));
        }
        class.decoding = begin.seconds();
        for (file, coded) in worth {
            let len = coder.decode(coded, &mut again[..file.len()]);
            assert!(len == Some(file.len()) && again[..file.len()] == *file, "{} gives back a file", self.name);
        }
        class
    }

    /// The memory of a file in a pool, which compresses it if that saves an eighth.
    fn count_memory(&mut self, size: u64, coded: Option<u64>) {
        let plain = scan::object(size);
        let is_worth = |memory: &u64| *memory <= plain - plain.div_ceil(WORTH as u64);
        let memory = coded.map(|coded| conquest_fs::compress::memory_of(size, coded)).filter(is_worth);
        self.plain_memory += plain;
        self.memory += memory.unwrap_or(plain);
    }

    pub fn saved(&self) -> f64 {
        1.0 - self.coded as f64 / self.plain.max(1) as f64
    }

    /// The saved part of the plain files' memory.
    pub fn memory_saved(&self) -> f64 {
        1.0 - self.memory as f64 / self.plain_memory.max(1) as f64
    }
}

/// Table 4.1: each codec on all files.
pub fn table(all: &[Measured]) -> Section {
    let mut table = Table::new(&[
        "codec",
        "saved",
        "of memory",
        "of files to 4 KiB",
        "of files from 16 KiB",
        "stay plain",
        "compress MB/s",
        "decompress MB/s",
    ]);
    for one in all {
        let of = |classes: std::ops::RangeInclusive<u32>| {
            let mut some = Class::default();
            one.by_class.range(classes).for_each(|(_, class)| some.add(class));
            match some.plain {
                0 => "-".into(),
                plain => percent(1.0 - some.coded as f64 / plain as f64),
            }
        };
        table.row([
            one.name.clone(),
            percent(one.saved()),
            percent(one.memory_saved()),
            of(0..=12),
            of(15..=64),
            one.stay.to_string(),
            format!("{:.0}", one.compress),
            format!("{:.0}", one.decompress),
        ]);
    }
    Section::of_table("profile-data", "Small files, each compressed whole (mramfs, Table 4.1)", table)
}

/// Figures 4.1 to 4.3: savings, speed and the size of all files together, by size class.
pub fn figures(sample: &Sample, all: &[Measured]) -> Vec<Section> {
    let by_size = "files up to so many bytes";
    let mut saved = Section::rates("profile-saved", "Saved, by size of the file (mramfs, Figure 4.1)", "%");
    let mut speed = Section::rates("profile-speed", "Compression, by size of the file (mramfs, Figure 4.2)", "MB/s");
    let title = "What all small files up to a size take together (mramfs, Figure 4.3)";
    let mut together = Section::times("profile-together", title, "MB");
    for section in [&mut saved, &mut speed, &mut together] {
        section.plot = Plot::lines(by_size);
    }
    for one in all {
        let mut sum = 0.0;
        for (class, of_class) in &one.by_class {
            let measure = format!("{} B", 1u64 << class);
            let share = of_class.coded as f64 / of_class.plain.max(1) as f64;
            saved.add(&one.name, &measure, 100.0 * (1.0 - share));
            speed.add(&one.name, &measure, of_class.plain as f64 / 1e6 / of_class.coding.max(1e-9));
            sum += sample.by_class.get(class).copied().unwrap_or(0) as f64 / 1e6 * share;
            together.add(&one.name, &measure, sum);
        }
    }
    let mut sum = 0.0;
    for (class, bytes) in &sample.by_class {
        sum += *bytes as f64 / 1e6;
        together.add("plain", &format!("{} B", 1u64 << class), sum);
    }
    vec![saved, speed, together]
}
