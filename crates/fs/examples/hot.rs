use fs::path::{Open, View};
use fs::*;
use std::time::Instant;
fn main() {
    let dir = std::path::Path::new("/dev/shm/cq-hot");
    let how = FormatOptions { size: 512 << 20, nvram: None, medium: MediumKind::Battery, force: true, root_mode: 0o755, root_owner: (0, 0) };
    Pool::format(dir, &how).unwrap();
    let pool = Pool::open(dir, &OpenOptions::default()).unwrap();
    let v = View::new(&pool, Caller::root());
    let what = std::env::args().nth(1).unwrap_or_default();
    for d in 0..100 { v.mkdir(format!("d{d:02}").as_bytes(), 0o755).unwrap(); }
    let paths: Vec<Vec<u8>> = (0..10000).map(|i| format!("d{:02}/f{:05}", i % 100, i).into_bytes()).collect();
    let data = [7u8; 1024];
    let rounds: usize = std::env::args().nth(2).and_then(|s| s.parse().ok()).unwrap_or(40);
    let mut t = [0f64; 4];
    for r in 0..rounds {
        let t0 = Instant::now();
        for p in &paths { v.create(p, 0o644).unwrap().write_at(0, &data).unwrap(); }
        let t1 = Instant::now();
        let n = if what == "stat" { 30 } else { 1 };
        for _ in 0..n { for p in &paths { v.stat(p).unwrap(); } }
        let t2 = Instant::now();
        let mut buf = [0u8; 4096];
        for p in &paths { v.open(p, Open { read: true, ..Default::default() }).unwrap().read_at(0, &mut buf).unwrap(); }
        let t3 = Instant::now();
        for p in &paths { v.unlink(p).unwrap(); }
        let t4 = Instant::now();
        if r > 0 {
        t[0] += (t1 - t0).as_secs_f64(); t[1] += (t2 - t1).as_secs_f64() / n as f64; t[2] += (t3 - t2).as_secs_f64(); t[3] += (t4 - t3).as_secs_f64();
        }
    }
    for (n, x) in ["create", "stat", "read", "unlink"].iter().zip(t) { println!("{n} {:.0} ns", x / (rounds - 1) as f64 / 10000.0 * 1e9); }
}
