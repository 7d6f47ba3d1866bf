//! A reader of memory and images that takes every offset and size from the tables of FORMAT.md. It panics
//! where the bytes differ from the page.

use crate::tables::{number, Page};

pub struct Reader<'a> {
    pub page: &'a Page,
    pub bytes: &'a [u8],
}

/// One structure in the memory.
#[derive(Clone, Copy)]
pub struct Raw<'a> {
    reader: &'a Reader<'a>,
    name: &'static str,
    pub off: u64,
}

impl Raw<'_> {
    pub fn get(&self, field: &str) -> u64 {
        let (at, size) = self.reader.page.structure(self.name).field(field);
        self.reader.uint(self.off + at, size)
    }

    pub fn bytes(&self, field: &str) -> &[u8] {
        let (at, size) = self.reader.page.structure(self.name).field(field);
        self.reader.slice(self.off + at, size)
    }
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub cookie: u64,
    pub name: Vec<u8>,
    pub ino: u64,
    pub kind: u64,
}

/// The cookie after the entry at `place`, before the one at `next`.
fn cookie(place: u64, next: Option<u64>) -> u64 {
    let short = |place: u64| (place >> 31) + 3;
    match place + 3 {
        _ if short(place) < (1 << 31) - (1 << 16) && next.map(short) != Some(short(place)) => short(place),
        long if long < 1 << 31 => long + (1 << 62),
        long => long,
    }
}

impl<'a> Reader<'a> {
    pub fn slice(&self, off: u64, len: u64) -> &[u8] {
        &self.bytes[off as usize..(off + len) as usize]
    }

    pub fn uint(&self, off: u64, size: u64) -> u64 {
        self.slice(off, size).iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    }

    pub fn at(&'a self, name: &'static str, off: u64) -> Raw<'a> {
        Raw { reader: self, name, off }
    }

    fn c(&self, name: &str) -> u64 {
        self.page.constant(name)
    }

    /// The header, both copies checked.
    pub fn header(&'a self) -> Raw<'a> {
        let [a, b] = ["HEADER_A", "HEADER_B"].map(|at| self.at("RawHeader", self.c(at)));
        let size = self.page.structure("RawHeader").size;
        assert_eq!(self.slice(a.off, size), self.slice(b.off, size), "the copies of the header");
        assert_eq!(a.bytes("magic"), b"CQ-PRAM\n");
        assert_eq!(a.get("version"), self.c("MEMORY_VERSION"));
        assert!((1..=self.c("LAYOUT_VERSION")).contains(&a.get("app_version")));
        assert_eq!(a.get("fingerprint"), self.c("FINGERPRINT"));
        assert_eq!(a.get("medium"), 1);
        assert_eq!(a.get("crc"), u64::from(crc32c(self.slice(a.off, size - 4))));
        a
    }

    /// The first chunk with objects.
    pub fn first(&self, slots: u64) -> u64 {
        (self.c("SLOTS_AT") + slots * self.c("SLOT")).div_ceil(self.c("HEAP_CHUNK"))
    }

    /// The position of a chunk's entry.
    pub fn entry(&self, chunk: u64) -> u64 {
        let size = self.page.structure("ChunkEntry").size;
        chunk / 1024 * self.c("GROUP") + self.c("TABLE_AT") + chunk % 1024 * size
    }

    /// Groups that have been begun.
    pub fn groups(&self) -> u64 {
        let word = self.root_word("ROOT_GROUPS");
        assert_eq!(word >> 32, !word & 0xffff_ffff);
        word & 0xffff_ffff
    }

    pub fn root_word(&self, name: &str) -> u64 {
        self.uint(self.c("ROOTS_AT") + self.c(name) * 8, 8)
    }

    /// The number of a kind of object.
    fn tag(&self, name: &str) -> u64 {
        let rows = self.page.rows(&["tag", "name", "object"]);
        number(&rows.iter().find(|r| r[1] == name).unwrap_or_else(|| panic!("no tag {name}"))[0])
    }

    /// Makes sure that an object of this kind is at `off`; returns its capacity.
    pub fn object(&'a self, off: u64, kind: &str) -> u64 {
        let chunk = off / self.c("HEAP_CHUNK");
        assert!(chunk >= self.first(self.header().get("slots")) && chunk % 1024 != 0);
        assert!(chunk / 1024 < self.groups());
        let start = chunk * self.c("HEAP_CHUNK");
        let entry = self.at("ChunkEntry", self.entry(chunk));
        let meta = self.page.structure("Meta");
        let word = entry.get("meta");
        assert_eq!(meta.bits(word, "tag"), self.tag(kind), "the tag of {off:#x}");
        if meta.bits(word, "state") == 2 {
            assert_eq!(off, start);
            return meta.bits(word, "len") * self.c("HEAP_CHUNK");
        }
        assert_eq!(meta.bits(word, "state"), 1, "{off:#x}");
        let rows = self.page.rows(&["class", "size", "count", "base"]);
        let class = &rows[meta.bits(word, "class") as usize];
        let [size, count, base] = [1, 2, 3].map(|i| number(&class[i]));
        let index = (off - start - base) / size;
        assert!(off == start + base + index * size && index < count, "{off:#x} is the start of an object");
        let bitmap = if base == 0 { entry.get("bits") } else { self.uint(start + index / 64 * 8, 8) };
        assert_eq!(bitmap >> (index % 64) & 1, 1, "{off:#x} is taken");
        size
    }

    /// Bytes of the largest size class that so many bytes fill.
    fn class_within(&self, bytes: u64) -> u64 {
        let sizes = self.page.rows(&["class", "size", "count", "base"]).iter().map(|row| number(&row[1]));
        sizes.filter(|size| *size <= bytes).max().unwrap_or_else(|| panic!("no class of {bytes} bytes or fewer"))
    }

    pub fn super_block(&'a self) -> Raw<'a> {
        let off = self.root_word("ROOT_SUPER");
        self.object(off, "superblock");
        let sup = self.at("Super", off);
        assert_eq!(sup.bytes("magic"), b"CQ-SUPER");
        sup
    }

    /// The inode, which must be in use.
    pub fn inode(&'a self, ino: u64) -> Raw<'a> {
        let (table, per_block) = (self.c("TABLE"), self.c("PER_BLOCK"));
        let block = ino / per_block;
        let top = self.super_block().get("inodes");
        self.object(top, "inode table");
        let second = self.uint(top + block / table * 8, 8);
        self.object(second, "inode table");
        let block_off = self.uint(second + block % table * 8, 8);
        self.object(block_off, "inode block");
        let shape = self.page.structure("InodeBlock");
        let size = self.page.structure("RawInode").size;
        assert_eq!(self.uint(block_off + shape.field("lengths").0 + ino % per_block, 1), size, "inode {ino} is in use");
        self.at("RawInode", block_off + shape.field("inodes").0 + ino % per_block * size)
    }

    pub fn perm(&'a self, id: u64) -> Raw<'a> {
        let table = self.super_block().get("perms");
        self.object(table, "permissions");
        let chunk = self.uint(table + id / self.c("PERM_CHUNK") * 8, 8);
        self.object(chunk, "permissions");
        self.at("RawPerm", chunk + id % self.c("PERM_CHUNK") * self.page.structure("RawPerm").size)
    }

    fn root(&self, inode: &Raw) -> (u64, u64, u64) {
        let (shape, word) = (self.page.structure("Root"), inode.get("content"));
        (shape.bits(word, "off"), shape.bits(word, "form"), shape.bits(word, "depth"))
    }

    /// The content of a file or link without holes: offsets and bytes.
    pub fn extents(&'a self, ino: u64, inode: &Raw) -> Vec<(u64, Vec<u8>)> {
        let size = inode.get("size");
        let (off, form, depth) = self.root(inode);
        let mut extents = Vec::new();
        if off == 0 {
            assert_eq!((form, inode.get("extra")), (0, 0));
        } else if form == self.c("FILE_DIRECT") {
            let capacity = self.object(off, "data");
            assert!(depth <= 1 && inode.get("extra") == 0 && capacity <= 32768);
            extents.push((0, self.slice(off, size.min(capacity)).to_vec()));
        } else {
            assert_eq!(form, self.c("FILE_TREE"));
            let depth = depth
                & !(3 << self.c("FILE_TRIAL_AT") | self.c("FILE_CUT") | self.c("FILE_LARGE") | self.c("FILE_MOVED"));
            assert!((1..=self.c("MAX_HEIGHT")).contains(&depth));
            self.node(ino, off, depth, 0, size, &mut extents);
            assert_eq!(extents.len() as u64, inode.get("extra"), "pages");
        }
        extents
    }

    /// Compares a file with its content if it is compressed by this codec; false if it is not.
    pub fn compressed(&'a self, ino: u64, content: &[u8], codec: u64) -> bool {
        let inode = self.inode(ino);
        let (off, form, depth) = self.root(&inode);
        if form != self.c("FILE_COMPRESSED") {
            return false;
        }
        let depth = depth & !(3 << self.c("FILE_TRIAL_AT"));
        let (capacity, head) = (self.object(off, "compressed"), self.at("RawCompressed", off));
        let (size, stored) = (head.get("size"), head.get("stored"));
        assert_eq!((size, inode.get("extra")), (inode.get("size"), 0));
        assert_eq!((head.get("codec"), depth), (codec, codec), "inode {ino}");
        let most = self.c("COMPRESSED_MOST");
        assert!((1..=most).contains(&size) && stored <= size);
        let head_size = self.page.structure("RawCompressed").size;
        let chunks = size.div_ceil(self.c("COMPRESSED_CHUNK"));
        let table = if chunks > 1 { chunks * self.page.structure("RawStreamChunk").size } else { 0 };
        let behind = off + head_size + table;
        let (mut stream, mut objects) = (Vec::new(), 0);
        while head_size + table + objects * 8 + stored - stream.len() as u64 > self.c("COMPRESSED_ALONE") {
            let len = self.class_within(stored - stream.len() as u64);
            let object = self.uint(behind + objects * 8, 8);
            assert!(self.object(object, "compressed") >= len);
            stream.extend_from_slice(self.slice(object, len));
            objects += 1;
        }
        let end = stored - stream.len() as u64;
        stream.extend_from_slice(self.slice(behind + objects * 8, end));
        assert!(head_size + table + objects * 8 + end <= capacity);
        let mut summed = ino.to_le_bytes().to_vec();
        summed.extend_from_slice(self.slice(off, head_size));
        summed[16..20].fill(0);
        summed.extend_from_slice(self.slice(off + head_size, table + objects * 8));
        if chunks == 1 {
            summed.extend_from_slice(&stream);
        }
        assert_eq!(head.get("check"), u64::from(crc32c(&summed)), "inode {ino}");
        let dictionary = head.get("dictionary");
        let dictionaries = self.dictionaries(0);
        let dictionary = dictionaries.iter().find(|one| one.0 == dictionary).map_or(&[][..], |one| &one.1);
        let (mut at, step) = (0, self.c("COMPRESSED_CHUNK") as usize);
        for (n, plain) in content.chunks(step).enumerate() {
            let chunk = self.at("RawStreamChunk", off + head_size + n as u64 * 8);
            let end = if chunks > 1 { chunk.get("end") as usize } else { stored as usize };
            let packed = &stream[at..end];
            if chunks > 1 {
                assert_eq!(chunk.get("check"), u64::from(crc32c(packed)));
            }
            if packed.len() == plain.len() {
                assert!(packed == plain);
            } else if codec == self.c("COMPRESSED_LZ4") {
                assert!(lz4::block::decompress(packed, Some(plain.len() as i32)).unwrap() == plain);
            } else {
                let mut decoder = zstd::bulk::Decompressor::with_dictionary(dictionary).unwrap();
                assert!(decoder.decompress(packed, plain.len()).unwrap() == plain);
            }
            at = end;
        }
        assert_eq!(at as u64, stored);
        true
    }

    /// Numbers and bytes of the dictionaries of one of the two lists.
    pub fn dictionaries(&'a self, copy: u64) -> Vec<(u64, Vec<u8>)> {
        let mut found = Vec::new();
        let mut off = self.uint(self.c("ROOTS_AT") + (self.c("ROOT_DICTIONARIES") + copy) * 8, 8);
        while off != 0 {
            let head = self.at("RawDictionary", off);
            let (size, len) = (self.page.structure("RawDictionary").size, head.get("len"));
            assert!(size + len <= self.object(off, "dictionary"));
            let summed = [head.bytes("number"), head.bytes("len"), self.slice(off + size, len)].concat();
            assert_eq!(head.get("check"), u64::from(crc32c(&summed)));
            found.push((head.get("number"), self.slice(off + size, len).to_vec()));
            off = head.get("older");
        }
        found
    }

    /// The meaning of an entry in a node of this height, for the pages from `page` on: kind and offset, or nothing.
    fn page_entry(&self, ino: u64, height: u64, page: u64, word: u64) -> Option<(u64, u64)> {
        let code_at = self.c("ENTRY_CODE_AT");
        let (bits, kind_at) = (word & ((1 << code_at) - 1), self.c("ENTRY_KIND_AT"));
        let spot = ino
            .wrapping_mul(0x8cb9_2ba7_2f3d_8dd7)
            .wrapping_add(page.wrapping_mul(0xd1b5_4a32_d192_ed03))
            .wrapping_add(height);
        let code = (bits ^ spot).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> code_at;
        assert!(word == 0 || word >> code_at == code, "check code of {word:#x}");
        (word != 0).then_some((bits >> kind_at, bits & ((1 << kind_at) - 1)))
    }

    fn node(&'a self, ino: u64, off: u64, height: u64, base: u64, size: u64, extents: &mut Vec<(u64, Vec<u8>)>) {
        let (page, fanout) = (self.c("PAGE"), self.c("FANOUT"));
        let entries = self.object(off, "index node") / 8;
        assert!(entries.is_power_of_two() && (8..=fanout).contains(&entries), "{entries} entries");
        let span = fanout.pow(height as u32 - 1);
        let before = extents.len();
        for i in 0..entries {
            let at = base + i * span;
            let Some((kind, child)) = self.page_entry(ino, height, at, self.uint(off + i * 8, 8)) else { continue };
            if height > 1 {
                assert_eq!(kind, self.c("ENTRY_NODE"));
                self.node(ino, child, height - 1, at, size, extents);
            } else {
                assert_eq!(self.object(child, "data"), page);
                let len = page.min(size.saturating_sub(at * page));
                let bytes = match kind == self.c("ENTRY_RESERVED") {
                    true => vec![0; len as usize],
                    false => self.slice(child, len).to_vec(),
                };
                assert!(kind == self.c("ENTRY_PAGE") && len > 0 || kind == self.c("ENTRY_RESERVED"));
                extents.push((at * page, bytes));
            }
        }
        assert!(extents.len() > before, "no node is all holes");
    }

    /// The entries of a directory, in the order of reading.
    pub fn names(&'a self, inode: &Raw) -> Vec<Name> {
        let (off, form, depth) = self.root(inode);
        let mut names = Vec::new();
        if off == 0 {
            assert_eq!(form, 0);
        } else if form == self.c("DIR_LONE") {
            self.bucket(off, 0, 0, &mut names);
        } else {
            assert_eq!(form, self.c("DIR_TABLE"));
            assert!(self.object(off, "bucket table") >= 8 << depth && depth <= self.c("MAX_DEPTH"));
            let mut index = 0;
            while index < 1 << depth {
                let bucket = self.uint(off + index * 8, 8);
                let local = self.bucket(bucket, depth, index, &mut names);
                let span = 1 << (depth - local);
                assert_eq!(index % span, 0);
                (index..index + span).for_each(|i| assert_eq!(self.uint(off + i * 8, 8), bucket));
                index += span;
            }
        }
        assert_eq!(names.len() as u64, inode.get("size"), "entries");
        names.sort();
        let places: Vec<u64> = names.iter().map(|name| name.cookie).collect();
        for (n, name) in names.iter_mut().enumerate() {
            name.cookie = cookie(places[n], places.get(n + 1).copied());
        }
        names
    }

    /// Reads one bucket, its entries with their places instead of cookies; returns its local depth.
    fn bucket(&'a self, off: u64, depth: u64, index: u64, names: &mut Vec<Name>) -> u64 {
        let capacity = self.object(off, "bucket");
        let (head, word) = (self.page.structure("BucketHead"), self.uint(off, 8));
        let [slots, start, live, local, spare] =
            ["slots", "start", "live", "depth", "spare"].map(|f| head.bits(word, f));
        assert!(spare == 0 && 8 + slots * 4 <= start && start <= capacity && local <= depth);
        let key = self.super_block().get("hash_key");
        let mut bytes = 0;
        for slot in (0..slots).map(|i| self.uint(off + 8 + i * 4, 4)).filter(|s| *s != 0) {
            let (shape, position) = (self.page.structure("EntryRecord"), slot & 0xffff);
            let record = self.uint(off + position, 8);
            let len = shape.bits(record, "len");
            assert!(position >= start && position + 8 + len <= capacity);
            let name = self.slice(off + position + 8, len).to_vec();
            let hash = name_hash(key, &name);
            assert_eq!(hash >> 16 & 0xffff, slot >> 16, "hash bits of {}", name.escape_ascii());
            let unused = depth - local;
            assert_eq!(hash.checked_shr(64 - depth as u32).unwrap_or(0) >> unused, index >> unused, "bucket");
            let place = (hash >> 14) << 12 | shape.bits(record, "sequence");
            names.push(Name { cookie: place, name, ino: shape.bits(record, "ino"), kind: shape.bits(record, "kind") });
            bytes += 12 + len;
        }
        assert_eq!(bytes, live);
        local
    }

    /// Names and values of the extended attributes.
    pub fn xattrs(&'a self, inode: &Raw) -> Vec<(Vec<u8>, Vec<u8>)> {
        let off = inode.get("xattr");
        let mut found = Vec::new();
        if off == 0 {
            return found;
        }
        let head = self.at("XattrHead", off);
        let (used, live) = (head.get("used"), head.get("live"));
        assert!(used <= self.object(off, "xattr") && used % 4 == 0);
        let mut at = off + self.page.structure("XattrHead").size;
        while at < off + used {
            let word = self.uint(at, 4);
            let (name, value) = (word & 0xff, word >> 8);
            if name > 0 {
                let start = at + 4 + name;
                found.push((self.slice(at + 4, name).to_vec(), self.slice(start, value).to_vec()));
            }
            at += 4 + (name + value).next_multiple_of(4);
        }
        assert_eq!((at, found.len() as u64), (off + used, live));
        found
    }
}

/// The memory in an image.
pub fn unpack(page: &Page, image: &[u8]) -> Vec<u8> {
    let file = Reader { page, bytes: image };
    let head = file.at("RawSave", 0);
    let size = page.structure("RawSave").size;
    assert_eq!(head.bytes("magic"), b"CQ-IMAGE");
    assert_eq!(head.get("version"), page.constant("SAVE_VERSION"));
    assert_eq!(head.get("fingerprint"), page.constant("FINGERPRINT"));
    assert_eq!((head.get("chunk"), head.get("app_version")), (65536, page.constant("LAYOUT_VERSION")));
    assert_eq!(head.get("crc"), u64::from(crc32c(&image[..size as usize - 4])));
    assert!(head.bytes("reserved").iter().all(|b| *b == 0));
    let mut memory = vec![0; head.get("size") as usize];
    let (mut at, mut floor, mut chunks, mut bytes, mut sums) = (size, 0, 0, 0, Vec::new());
    let head_size = page.structure("RawChunk").size;
    while file.slice(at, 8) != b"CQ-IMEND" {
        let chunk = file.at("RawChunk", at);
        let (offset, len) = (chunk.get("offset"), chunk.get("len"));
        assert!(offset >= floor && (1..=65536).contains(&len));
        let content = file.slice(at + head_size, len);
        let sum = [file.slice(at, head_size - 4), content].concat();
        assert_eq!(chunk.get("crc"), u64::from(crc32c(&sum)));
        sums.extend_from_slice(chunk.bytes("crc"));
        memory[offset as usize..(offset + len) as usize].copy_from_slice(content);
        (at, floor, chunks, bytes) = (at + head_size + len, offset + len, chunks + 1, bytes + len);
    }
    let end = file.at("RawSaveEnd", at);
    let size = page.structure("RawSaveEnd").size;
    assert_eq!((end.get("chunks"), end.get("bytes")), (chunks, bytes));
    assert!(chunks <= head.get("chunks"));
    assert_eq!(end.get("sum"), u64::from(crc32c(&sums)));
    assert_eq!(end.get("crc"), u64::from(crc32c(file.slice(at, size - 4))));
    assert_eq!(at + size, image.len() as u64, "nothing follows the trailer");
    memory
}

pub fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, b| (0..8).fold(crc ^ u32::from(*b), |c, _| step(c)))
}

/// The hash of a name, as in FORMAT.md.
pub fn name_hash(key: u64, name: &[u8]) -> u64 {
    siphash_1_3(key, key.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15, name)
}

fn siphash_1_3(k0: u64, k1: u64, data: &[u8]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let round = |v: &mut [u64; 4]| {
        for (a, b, c, d, x, y) in [(0, 1, 2, 3, 13, 16), (2, 1, 0, 3, 17, 21)] {
            v[a] = v[a].wrapping_add(v[b]);
            v[c] = v[c].wrapping_add(v[d]);
            v[b] = v[b].rotate_left(x) ^ v[a];
            v[d] = v[d].rotate_left(y) ^ v[c];
            v[a] = v[a].rotate_left(32);
        }
    };
    let mut padded = data.to_vec();
    padded.resize(data.len() / 8 * 8 + 7, 0);
    padded.push(data.len() as u8);
    for block in padded.chunks_exact(8) {
        let word = block.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
        v[3] ^= word;
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..3).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}
