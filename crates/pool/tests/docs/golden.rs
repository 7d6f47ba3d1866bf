//! This version reads images of released versions.

use conquest::{OpenOptions, Pool};

use crate::tables::Page;
use crate::{content, memory};

/// Every released version, and its layout version. `cargo run -p conquest-pool --example golden -- FILE` makes the image
/// of this one.
const IMAGES: [(&str, u32); 1] = [("v9.image", 9)];

#[test]
fn images_of_all_versions_are_restored() {
    let page = Page::open("FORMAT.md");
    for (name, version) in IMAGES {
        let image = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        assert!(std::fs::metadata(&image).unwrap().len() < 100_000, "{name} is small");
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        Pool::restore(dir.path(), &image, Some(conquest::MediumKind::Battery), false, &mut |_, _| {}).unwrap();
        let pool = Pool::open(dir.path(), &OpenOptions { noatime: true, ..OpenOptions::default() }).unwrap();
        content::compare(&pool);
        assert_eq!(pool.session().memory().info.app_version, version);
        content::compare_settings(&pool);
        memory::compare_with(&pool, &memory::memory_bytes(dir.path()), &page);
        let report = pool.fsck(true, &mut |_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        content::fill_more(&pool);
        assert!(pool.fsck(false, &mut |_, _| {}).unwrap().problems.is_empty());
    }
}
