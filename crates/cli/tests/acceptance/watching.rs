//! What the server of a mount tells about its pool and its work, to any user and to programs that watch it.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::Value;

use crate::lab::{self, wait_until, Lab, NOBODY};
use crate::stopped::Stop;
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("watching::operations_are_counted", operations),
    ("watching::prometheus_gets_what_it_asks_for", prometheus),
    ("watching::a_server_that_does_not_answer_is_not_waited_for", silent),
    ("watching::attributes_of_the_pool_stay_with_it", attributes),
];

const PATIENCE: Duration = Duration::from_secs(20);
const FILES: u64 = 50;

/// A mounted pool in which files were written and read.
fn used() -> Lab {
    let lab = Lab::mounted("16M");
    for n in 0..FILES {
        let path = lab.mnt().join(format!("{n}"));
        fs::write(&path, [7; 4096]).expect("write");
        assert_eq!(fs::read(&path).expect("read").len(), 4096);
    }
    lab
}

fn operations() -> Outcome {
    lab::require("setpriv")?;
    let lab = used();
    let told: Value = serde_json::from_str(&lab.ok(&["iostat", &lab.pool(), "--json"])).expect("JSON");
    let kinds = told["pools"][0]["operations"]["kinds"].as_array().expect("kinds");
    let kind =
        |name: &str| kinds.iter().find(|kind| kind["name"] == name).unwrap_or_else(|| panic!("no {name}: {told}"));
    let count = |of: &Value, what: &str| of[what].as_u64().expect("a number");
    let written = kind("write");
    assert!(count(written, "requests") >= FILES && count(written, "bytes") >= FILES * 4096, "{written}");
    assert!(count(written, "nanos") > 0 && count(written, "failures") == 0, "{written}");
    let latencies = written["latencies"].as_array().expect("latencies");
    let sum: u64 = latencies.iter().map(|pair| pair[1].as_u64().expect("a count")).sum();
    assert_eq!(sum, count(written, "requests"));
    assert_eq!(count(kind("create"), "requests"), FILES);
    for place in [lab.pool(), lab.text("mnt")] {
        for args in [&["iostat", &place][..], &["iostat", &place, "0.1", "3"], &["iostat", &place, "-v"]] {
            let ran = lab.run_as(&NOBODY, args);
            assert!(ran.code == 0 && ran.out.contains(&lab.pool()), "{args:?}: {}{}", ran.out, ran.err);
        }
    }
    // The second line is of the interval alone, in which nobody has written.
    let lines = lab.ok(&["iostat", &lab.pool(), "0.1", "2", "--json"]);
    let second: Value = serde_json::from_str(lines.lines().nth(1).expect("two lines")).expect("JSON");
    let passed = &second["pools"][0]["operations"];
    assert!(passed["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{second}");
    assert!(passed["kinds"].as_array().expect("kinds").iter().all(|kind| kind["name"] != "write"), "{second}");
    lab.refused(2, &["iostat", &lab.pool(), "soon"], &["interval", "`5 10`"]);
    lab.umount();
    lab.refused(1, &["iostat", &lab.pool()], &["mounted", "conquest list"]);
    Ok(())
}

fn prometheus() -> Outcome {
    let lab = used();
    let of = format!("{{pool=\"{}\",mount=\"{}\"", lab.pool(), lab.text("mnt"));
    let wanted = [
        format!("conquest_health{of},health=\"ok\"}} 1\n"),
        format!("conquest_health{of},health=\"dead\"}} 0\n"),
        format!("conquest_operation_seconds_count{of},operation=\"create\"}} {FILES}\n"),
        format!("conquest_memory_size_bytes{of}}} {}\n", 16 << 20),
        format!("conquest_copy_age_seconds{of}}} "),
    ];
    let complete = |text: &str| wanted.iter().all(|line| text.contains(line));
    let once = lab.ok(&["metrics", &lab.pool()]);
    assert!(complete(&once), "{wanted:#?} in {once}");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
    let mut server = lab.command(&["metrics", "--listen", &free.to_string()]).spawn().expect("it begins");
    let get = |path: &str| {
        let mut answer = String::new();
        let asked = TcpStream::connect(free).and_then(|mut stream| {
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            stream.read_to_string(&mut answer)
        });
        asked.map(|_| answer).unwrap_or_default()
    };
    wait_until(PATIENCE, "it answers", || complete(&get("/metrics")));
    assert!(get("/metrics").starts_with("HTTP/1.1 200 ") && get("/other").starts_with("HTTP/1.1 404 "));
    lab.refused(1, &["metrics", "--listen", &free.to_string()], &["another address or port"]);
    lab.kill9();
    assert!(get("/metrics").contains(&format!("conquest_health{of},health=\"dead\"}} 1\n")));
    server.kill().and_then(|()| server.wait()).expect("it ends");
    Ok(())
}

fn silent() -> Outcome {
    let lab = used();
    {
        let _stop = Stop::new(lab.server());
        let listed = lab.ok(&["list"]);
        let line = listed.lines().find(|line| line.contains(&lab.pool())).unwrap_or_default();
        assert!(line.contains("NO ANSWER"), "{listed}");
        lab.refused(1, &["iostat", &lab.pool()], &["does not answer", "conquest list"]);
        assert!(lab.ok(&["metrics", &lab.pool()]).contains("health=\"silent\"} 1"));
    }
    assert!(lab.ok(&["list"]).contains("  ok  "));
    Ok(())
}

/// They are not listed, so that no copy takes them along, and cannot be set.
fn attributes() -> Outcome {
    let lab = used();
    let file = lab.mnt().join("0");
    for name in ["user.conquest.status", "user.conquest.operations"] {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(&file, name, &mut value[..]).expect("it is told");
        let told: Value = serde_json::from_slice(&value[..len]).expect("JSON");
        assert!(told["version"].is_string(), "{told}");
        assert!(rustix::fs::setxattr(&file, name, b"{}", XattrFlags::empty()).is_err());
        assert!(rustix::fs::removexattr(&file, name).is_err());
        assert_eq!(rustix::fs::getxattr(&file, name, &mut value[..10]), Err(Errno::RANGE));
        let listed = rustix::fs::listxattr(&file, &mut value[..]).expect("a list");
        assert!(!value[..listed].windows(name.len()).any(|bytes| bytes == name.as_bytes()));
    }
    Ok(())
}
