//! The findings of the reader that knows only FORMAT.md in the checkpoint.

use std::fs::File;

use backing::image::Image;
use backing::log::{Identity, Instant};

use crate::reader::{crc32c, Reader};
use crate::tables::Page;

const PAGE: u64 = 4096;

impl Reader<'_> {
    /// The position of the valid header.
    fn pages_header(&self) -> u64 {
        let (page, raw) = (self.page, self.page.structure("RawImage"));
        let whole = |at: &u64| {
            let crc = self.uint(at + raw.field("crc").0, 4);
            self.slice(*at, 8) == b"CQ-PAGES" && crc == u64::from(crc32c(self.slice(*at, raw.size - 4)))
        };
        let generation = |at: &u64| self.uint(at + raw.field("generation").0, 8);
        let newest = [0, PAGE].into_iter().filter(whole).max_by_key(generation).expect("a header");
        assert_eq!(self.uint(newest + raw.field("fingerprint").0, 8), page.constant("FINGERPRINT"));
        newest
    }

    /// A page of the memory, if it is stored.
    fn memory_page(&self, page: u64) -> Option<&[u8]> {
        let (raw, entry) = (self.page.structure("RawImage"), self.page.structure("RawEntry"));
        let header = self.pages_header();
        let height = 4;
        let mut at = header + raw.field("root").0;
        for level in (0..=height).rev() {
            let slot = self.uint(at + entry.field("slot").0, 4);
            let crc = self.uint(at + entry.field("crc").0, 4);
            if slot == 0 {
                assert_eq!(crc, 0);
                return None;
            }
            assert!((2..=self.uint(header + raw.field("last").0, 4)).contains(&slot));
            assert_eq!(crc, u64::from(crc32c(self.slice(slot * PAGE, PAGE))), "page {page}, level {level}");
            if level == 0 {
                return Some(self.slice(slot * PAGE, PAGE));
            }
            at = slot * PAGE + page / 512u64.pow(level - 1) % 512 * entry.size;
        }
        None
    }
}

#[test]
fn a_checkpoint_is_as_documented() {
    let format = Page::open("FORMAT.md");
    let dir = tempfile::tempdir().unwrap();
    for size in [1 << 20, 1 << 30, 1 << 40, 1 << 47] {
        let (path, uuid) = (dir.path().join(size.to_string()), [7; 16]);
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let mut image = Image::create(file, Identity { uuid }, Instant::default()).unwrap();
        let last = size / PAGE - 1;
        let stored = [0, 1, 255, last / 3, last].map(|page| page.min(last));
        for n in 1..4 {
            let mut update = image.begin();
            stored.iter().for_each(|page| update.write(*page, &[*page as u8 ^ n | 1; PAGE as usize]).unwrap());
            update.write(2, &[n / 3; PAGE as usize]).unwrap();
            update.write(3, &[n % 3; PAGE as usize]).unwrap();
            update.finish(Instant { commit: n.into(), time: -5 }).unwrap();
        }
        let bytes = std::fs::read(&path).unwrap();
        let reader = Reader { page: &format, bytes: &bytes };
        for page in stored.into_iter().chain([2, 3, 4, last - 1]) {
            let mut ours = [0; PAGE as usize];
            let found = image.read(page, &mut ours).unwrap();
            assert_eq!(reader.memory_page(page), found.then_some(&ours[..]), "page {page} of {size} bytes");
        }
        assert!(reader.memory_page(2).is_some() && reader.memory_page(3).is_none());
        let (header, raw) = (reader.pages_header(), format.structure("RawImage"));
        let get = |field: &str| reader.uint(header + raw.field(field).0, raw.field(field).1);
        assert_eq!((get("version"), get("page")), (2, PAGE));
        assert_eq!((get("generation"), get("commit"), get("time") as i64), (4, 3, -5));
        assert_eq!(reader.slice(header + raw.field("uuid").0, 16), uuid);
        assert_eq!(reader.slice(0, PAGE), reader.slice(PAGE, PAGE), "both headers");
    }
}
