//! What small files would take: a sample of them by codec (mramfs, chapter 4).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::time::Instant;

use bench::plot::Plot;
use bench::report::Section;
use lz4::block::{compress, decompress, CompressionMode};

use crate::metadata::percent;
use crate::scan::Tree;
use crate::Table;

/// Files up to this many bytes are looked at, as in mramfs.
pub const SMALL: u64 = 128 << 10;
/// Where less than an eighth is saved, a file stays plain.
const WORTH: usize = 8;
/// Bytes of a dictionary, and of what it is trained on.
const DICTIONARY: usize = 64 << 10;
const TRAINED_ON: usize = 16 << 20;
/// Size classes of the figures: powers of two from here on.
const FIRST_CLASS: u32 = 9;

/// Some of the small files of a tree, with their content.
pub struct Sample {
    files: Vec<Vec<u8>>,
    /// Others, for dictionaries.
    others: Vec<Vec<u8>>,
    /// All small files: how many, and their bytes.
    pub count: u64,
    pub bytes: u64,
    /// Bytes of all files, by size class.
    by_class: BTreeMap<u32, u64>,
    pub unreadable: u64,
}

impl Sample {
    /// Reads some `most` bytes of small files, spread over the tree, and as much again for dictionaries.
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
            match File::open(path).and_then(|file| file.take(SMALL).read_to_end(&mut content)) {
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

    /// A dictionary of the files that are not measured; none if there are too few.
    fn dictionary(&self) -> Option<Vec<u8>> {
        // A training sample should see many files, so the long ones count in part.
        let begins: Vec<&[u8]> = self.others.iter().map(|file| &file[..file.len().min(DICTIONARY)]).collect();
        zstd::dict::from_samples(&begins, DICTIONARY).ok()
    }

    /// All codecs on all files.
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

/// The size class of `size` bytes: the power of two that it does not exceed.
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

/// A codec's way both ways.
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

    fn code(&mut self, plain: &[u8]) -> Option<Vec<u8>> {
        match (&mut self.zstd, self.codec) {
            (Some((zstd, _)), _) => zstd.compress(plain).ok(),
            (None, Codec::Lz4Hc(level)) => compress(plain, Some(CompressionMode::HIGHCOMPRESSION(level)), false).ok(),
            _ => compress(plain, None, false).ok(),
        }
    }

    fn decode(&mut self, coded: &[u8], len: usize) -> Option<Vec<u8>> {
        match &mut self.zstd {
            Some((_, zstd)) => zstd.decompress(coded, len).ok(),
            None => decompress(coded, Some(len as i32)).ok(),
        }
    }
}

/// What a codec made of the files.
pub struct Measured {
    pub name: String,
    pub plain: u64,
    /// What they take then, where it does not pay plain.
    pub coded: u64,
    /// Files that stay plain.
    pub stay: u64,
    /// MB in a second.
    pub compress: f64,
    pub decompress: f64,
    /// By size class: bytes, bytes then, seconds of compressing.
    by_class: BTreeMap<u32, (u64, u64, f64)>,
}

impl Measured {
    fn of(codec: Codec, files: &[Vec<u8>]) -> Measured {
        let mut measured = Measured {
            name: codec.name(),
            plain: 0,
            coded: 0,
            stay: 0,
            compress: 0.0,
            decompress: 0.0,
            by_class: BTreeMap::new(),
        };
        let Some(mut coder) = Coder::new(codec) else { return measured };
        let (mut coding, mut decoding, mut decoded) = (0.0, 0.0, 0);
        for file in files {
            let begin = Instant::now();
            let coded = coder.code(file);
            let time = begin.elapsed().as_secs_f64();
            coding += time;
            let worth = file.len() - file.len() / WORTH;
            let after = match coded.filter(|coded| coded.len() <= worth) {
                Some(coded) => {
                    let begin = Instant::now();
                    let again = coder.decode(&coded, file.len());
                    decoding += begin.elapsed().as_secs_f64();
                    assert!(again.as_ref() == Some(file), "{} gives back what it was given", measured.name);
                    decoded += file.len();
                    coded.len()
                }
                None => {
                    measured.stay += 1;
                    file.len()
                }
            };
            measured.plain += file.len() as u64;
            measured.coded += after as u64;
            let of_class = measured.by_class.entry(class(file.len() as u64)).or_default();
            *of_class = (of_class.0 + file.len() as u64, of_class.1 + after as u64, of_class.2 + time);
        }
        let rate = |bytes: u64, seconds: f64| bytes as f64 / 1e6 / f64::max(seconds, 1e-9);
        measured.compress = rate(measured.plain, coding);
        measured.decompress = rate(decoded as u64, decoding);
        measured
    }

    pub fn saved(&self) -> f64 {
        1.0 - self.coded as f64 / self.plain.max(1) as f64
    }
}

/// Table 4.1: each codec on all files.
pub fn table(all: &[Measured]) -> Table {
    let mut table = Table::new(
        "profile-data",
        "Small files, each compressed whole (mramfs, Table 4.1)",
        &[
            "codec",
            "saved",
            "of files to 4 KiB",
            "of files from 16 KiB",
            "stay plain",
            "compress MB/s",
            "decompress MB/s",
        ],
    );
    for one in all {
        let of = |classes: std::ops::RangeInclusive<u32>| {
            let some = one.by_class.range(classes).fold((0, 0), |sum, (_, c)| (sum.0 + c.0, sum.1 + c.1));
            if some.0 == 0 {
                "-".into()
            } else {
                percent(1.0 - some.1 as f64 / some.0 as f64)
            }
        };
        table.row([
            one.name.clone(),
            percent(one.saved()),
            of(0..=12),
            of(15..=64),
            one.stay.to_string(),
            format!("{:.0}", one.compress),
            format!("{:.0}", one.decompress),
        ]);
    }
    table
}

/// Figures 4.1 to 4.3: saved, speed and what all files take together, by size.
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
        for (class, (plain, coded, seconds)) in &one.by_class {
            let measure = format!("{} B", 1u64 << class);
            let share = *coded as f64 / (*plain).max(1) as f64;
            saved.add(&one.name, &measure, 100.0 * (1.0 - share));
            speed.add(&one.name, &measure, *plain as f64 / 1e6 / seconds.max(1e-9));
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
