//! Names in few bytes: a code of one byte for each string of up to eight that names often have in them (FSST: Boncz, Neumann and Leis,
//! VLDB 2020). Each name is coded by itself and equal names alike, so that they are compared as they are.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::varint;
use crate::attr::NAME_MAX;

/// Most symbols: the last code says that a byte follows as it is.
pub const MOST: usize = 255;
const ESCAPE: u8 = 255;
/// Bytes of the longest symbol.
const LONGEST: usize = 8;
/// Bytes of the longest name, coded.
pub const CODED_MAX: usize = 2 * NAME_MAX;
/// Bytes of names that symbols are made of, at least while there are more.
const SAMPLE: usize = 256 << 10;
/// How often symbols are chosen anew, each time from those of the time before and pairs of these.
const ROUNDS: usize = 6;

/// A coded name.
pub type Coded = SmallVec<[u8; 64]>;

/// Bytes that names have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Symbol {
    /// The first one in the lowest bits, zeros behind the last.
    word: u64,
    len: u8,
}

impl Symbol {
    fn of(bytes: &[u8]) -> Symbol {
        let bytes = &bytes[..bytes.len().min(LONGEST)];
        Symbol { word: load(bytes), len: bytes.len() as u8 }
    }

    /// This one and then `next`, as far as there is room.
    fn then(self, next: Symbol) -> Symbol {
        let shifted = next.word.checked_shl(8 * u32::from(self.len)).unwrap_or(0);
        Symbol { word: self.word | shifted, len: (self.len + next.len).min(LONGEST as u8) }
    }

    fn first(self) -> u8 {
        self.word as u8
    }

    #[inline(always)]
    fn begins(self, word: u64) -> bool {
        (word ^ self.word) << (64 - 8 * u32::from(self.len)) == 0
    }
}

/// The first eight of `bytes`, or all and zeros.
#[inline(always)]
fn load(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(word) => u64::from_le_bytes(*word),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// The symbols and codes of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbols {
    /// By code: by first byte, then longer ones first.
    symbols: Vec<Symbol>,
    /// For each byte, how many symbols begin with lower ones.
    first: Box<[u16; 257]>,
}

impl Symbols {
    /// `None` if these are too many, or one is twice or empty.
    fn new(mut symbols: Vec<Symbol>) -> Option<Symbols> {
        symbols.sort_unstable_by_key(|s| (s.first(), std::cmp::Reverse(s.len), s.word));
        let is_sound = symbols.len() <= MOST
            && symbols.iter().all(|s| (1..=LONGEST as u8).contains(&s.len))
            && symbols.windows(2).all(|pair| pair[0] != pair[1]);
        let below = |byte: usize| symbols.partition_point(|s| usize::from(s.first()) < byte) as u16;
        let first = Box::new(std::array::from_fn(below));
        is_sound.then_some(Symbols { symbols, first })
    }

    /// The code of the longest symbol that `rest` begins with.
    #[inline(always)]
    fn longest(&self, rest: &[u8]) -> Option<usize> {
        let word = load(rest);
        let byte = usize::from(word as u8);
        let (from, to) = (usize::from(self.first[byte]), usize::from(self.first[byte + 1]));
        let near = self.symbols.get(from..to)?;
        near.iter().position(|s| s.begins(word) && usize::from(s.len) <= rest.len()).map(|n| from + n)
    }

    #[inline]
    pub fn encode(&self, name: &[u8]) -> Coded {
        let (mut out, mut rest) = (Coded::new(), name);
        while let Some((first, behind)) = rest.split_first() {
            match self.longest(rest) {
                Some(code) => {
                    out.push(code as u8);
                    rest = &rest[usize::from(self.symbols[code].len)..];
                }
                None => {
                    out.extend_from_slice(&[ESCAPE, *first]);
                    rest = behind;
                }
            }
        }
        out
    }

    /// The name that was coded; `None` if none was.
    #[inline]
    pub fn decode<'n>(&self, coded: &[u8], name: &'n mut [u8; NAME_MAX]) -> Option<&'n [u8]> {
        let (mut len, mut codes) = (0, coded.iter());
        while let Some(code) = codes.next() {
            let symbol = match self.symbols.get(usize::from(*code)) {
                Some(symbol) => *symbol,
                None if *code == ESCAPE => Symbol { word: u64::from(*codes.next()?), len: 1 },
                None => return None,
            };
            let bytes = symbol.word.to_le_bytes();
            name.get_mut(len..)?.get_mut(..usize::from(symbol.len))?.copy_from_slice(&bytes[..usize::from(symbol.len)]);
            len += usize::from(symbol.len);
        }
        Some(&name[..len])
    }

    /// As they are stored: how many, and each with its length before it.
    pub fn to_bytes(&self, out: &mut Vec<u8>) {
        varint::put(out, self.symbols.len() as u64);
        for symbol in &self.symbols {
            out.push(symbol.len);
            out.extend(&symbol.word.to_le_bytes()[..usize::from(symbol.len)]);
        }
    }

    pub fn from_bytes(from: &mut &[u8]) -> Option<Symbols> {
        let mut symbols = Vec::new();
        for _ in 0..varint::take(from)?.min(MOST as u64 + 1) {
            let len = usize::from(varint::take_byte(from)?);
            let (bytes, rest) = from.split_at_checked(len).filter(|_| len <= LONGEST)?;
            symbols.push(Symbol::of(bytes));
            *from = rest;
        }
        Symbols::new(symbols)
    }
}

/// Names that were seen, for symbols of them: of many, some from all over.
#[derive(Clone, Debug)]
pub struct Sample {
    names: Vec<Vec<u8>>,
    bytes: usize,
    /// Each how many-th is taken, and how many were passed since.
    every: usize,
    passed: usize,
}

impl Default for Sample {
    fn default() -> Sample {
        Sample { names: Vec::new(), bytes: 0, every: 1, passed: 0 }
    }
}

impl Sample {
    pub fn add(&mut self, name: &[u8]) {
        self.passed += 1;
        if self.passed < self.every {
            return;
        }
        self.passed = 0;
        self.bytes += name.len();
        self.names.push(name.to_vec());
        if self.bytes >= 2 * SAMPLE {
            let mut n = 0;
            self.names.retain(|_| {
                n += 1;
                n % 2 == 0
            });
            self.bytes = self.names.iter().map(Vec::len).sum();
            self.every *= 2;
        }
    }

    /// Symbols that code these names in the fewest bytes, about: those that save most are kept, and pairs of them that follow each
    /// other made one, round by round.
    pub fn symbols(&self) -> Symbols {
        let mut best = Symbols::new(Vec::new()).expect("no symbols");
        for _ in 0..ROUNDS {
            let gains = self.gains(&best);
            let mut all: Vec<(u64, Symbol)> = gains.into_iter().map(|(symbol, gain)| (gain, symbol)).collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            all.truncate(MOST);
            match Symbols::new(all.into_iter().map(|(_, symbol)| symbol).collect()) {
                Some(next) => best = next,
                None => break,
            }
        }
        best
    }

    /// The saving of each symbol, and of each pair of them.
    fn gains(&self, by: &Symbols) -> HashMap<Symbol, u64> {
        let mut gains: HashMap<Symbol, u64> = HashMap::new();
        for name in &self.names {
            let (mut rest, mut last) = (name.as_slice(), None::<Symbol>);
            while !rest.is_empty() {
                let symbol = by.longest(rest).map_or(Symbol::of(&rest[..1]), |code| by.symbols[code]);
                // A byte that has no code takes two.
                *gains.entry(symbol).or_default() += u64::from(symbol.len);
                if let Some(last) = last.filter(|last| usize::from(last.len) < LONGEST) {
                    let both = last.then(symbol);
                    *gains.entry(both).or_default() += u64::from(both.len);
                }
                last = Some(symbol);
                rest = &rest[usize::from(symbol.len)..];
            }
        }
        gains
    }
}
