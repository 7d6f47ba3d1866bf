//! `conquest metrics`: what mounts tell of their pools, as Prometheus reads it.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use conquest::brief::Brief;
use conquest::health::Health;
use conquest::operations::Operations;

use crate::failure::{Context, Failure, Result};
use crate::mounts::Mounted;
use crate::{ask, say};

/// Print the health, the room and the operations of mounted pools for Prometheus.
#[derive(clap::Args)]
#[command(
    after_help = "Without --listen it prints them once, as for the textfile collector of node_exporter. docs/monitoring has a board for Grafana, \
    and alerts.\n\nExamples:\n  conquest metrics > /var/lib/prometheus/node-exporter/conquest.prom\n  \
    conquest metrics --listen 127.0.0.1:9834"
)]
pub struct Args {
    /// The pool directory, or where it is mounted [default: all that are mounted]
    pool: Option<PathBuf>,
    /// Answer HTTP requests at this address until it is ended
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = args.pool.as_deref();
    let Some(address) = args.listen else { return say(text(pool)?.trim_end()) };
    let server = tiny_http::Server::http(address)
        .map_err(|e| Failure::new(format!("cannot listen at {address}: {e}; give another address or port")))?;
    tracing::info!("metrics at http://{address}/metrics");
    for request in server.incoming_requests() {
        let response = match (request.url(), text(pool)) {
            ("/" | "/metrics", Ok(text)) => tiny_http::Response::from_string(text),
            ("/" | "/metrics", Err(e)) => tiny_http::Response::from_string(format!("{e}\n")).with_status_code(503),
            _ => tiny_http::Response::from_string("see /metrics\n").with_status_code(404),
        };
        let kind = tiny_http::Header::from_bytes("Content-Type", "text/plain; version=0.0.4");
        let response = kind.into_iter().fold(response, |response, kind| response.with_header(kind));
        // Who asked may be gone.
        _ = request.respond(response);
    }
    Err(Failure::new(format!("nothing listens at {address} any more")))
}

/// A pool, and what its mount tells; nothing if it does not answer.
struct Seen {
    labels: String,
    health: Option<Health>,
    brief: Option<Brief>,
    operations: Option<Operations>,
}

fn text(pool: Option<&std::path::Path>) -> Result<String> {
    let seen: Vec<Seen> = ask::mounts(pool)?.iter().map(look).collect();
    let mut out = String::new();
    of_health(&mut out, &seen).context(|| "cannot write metrics".into())?;
    of_operations(&mut out, &seen).context(|| "cannot write metrics".into())?;
    Ok(out)
}

fn look(mounted: &Mounted) -> Seen {
    let labels = format!("pool=\"{}\",mount=\"{}\"", label(&mounted.source), label(&mounted.dir));
    let (health, brief) = match ask::brief(mounted) {
        ask::Asked::Known(brief) => (Some(brief.health), Some(*brief)),
        ask::Asked::Dead => (Some(Health::Dead), None),
        ask::Asked::Silent => (Some(Health::Silent), None),
        ask::Asked::Unknown => (None, None),
    };
    let operations = brief.as_ref().and_then(|_| ask::operations(mounted).known());
    Seen { labels, health, brief, operations }
}

/// The value of a label.
fn label(path: &std::path::Path) -> String {
    path.display().to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

type Done = std::result::Result<(), std::fmt::Error>;

fn head(out: &mut String, name: &str, kind: &str, help: &str) -> Done {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

fn of_health(out: &mut String, seen: &[Seen]) -> Done {
    head(out, "conquest_health", "gauge", "1 for the health that the pool has: ok, degraded, dead and others.")?;
    for one in seen {
        for health in Health::ALL {
            let is = u8::from(one.health == Some(health));
            let name = health.name();
            writeln!(out, "conquest_health{{{},health=\"{name}\"}} {is}", one.labels)?;
        }
    }
    let briefs = || seen.iter().filter_map(|one| one.brief.as_ref().map(|brief| (&one.labels, brief)));
    type Value = fn(&Brief) -> Option<f64>;
    let gauges: [(&str, &str, Value); 8] = [
        ("findings", "What is wrong with the pool, or worth knowing.", |b| Some(b.findings.len() as f64)),
        ("memory_size_bytes", "The memory of the pool.", |b| Some(b.memory.size as f64)),
        ("memory_used_bytes", "Memory that does not give way.", |b| Some(b.memory.used as f64)),
        ("memory_cache_bytes", "Memory of the cache, which gives way.", |b| Some(b.cache as f64)),
        ("disks_size_bytes", "The disks of the pool.", |b| b.disks.map(|disks| disks.size as f64)),
        ("disks_used_bytes", "Bytes on disks in use.", |b| b.disks.map(|disks| disks.used as f64)),
        ("copy_age_seconds", "How much work the copy on disk lacks.", |b| {
            b.copy.as_ref().and_then(|copy| copy.lacks())
        }),
        ("copy_pending_bytes", "Bytes that the copy on disk lacks.", |b| b.copy.as_ref().map(|c| c.pending as f64)),
    ];
    for (name, help, value) in gauges {
        let name = format!("conquest_{name}");
        head(out, &name, "gauge", help)?;
        for (labels, value) in briefs().filter_map(|(labels, brief)| Some((labels, value(brief)?))) {
            writeln!(out, "{name}{{{labels}}} {value}")?;
        }
    }
    Ok(())
}

/// Every so many buckets of the mount are one here: a power of two.
const WIDTH: usize = 4;

fn of_operations(out: &mut String, seen: &[Seen]) -> Done {
    let all = || {
        let known = seen.iter().filter_map(|one| one.operations.as_ref().map(|operations| (&one.labels, operations)));
        known.flat_map(|(labels, operations)| operations.kinds.iter().map(move |kind| (labels, kind)))
    };
    for (name, help) in
        [("bytes", "Bytes of content read and written."), ("failures", "Answers of EIO, ENOSPC or EROFS.")]
    {
        let metric = format!("conquest_operation_{name}_total");
        head(out, &metric, "counter", help)?;
        for (labels, kind) in all() {
            let value = if name == "bytes" { kind.bytes } else { kind.failures };
            writeln!(out, "{metric}{{{labels},operation=\"{}\"}} {value}", kind.name)?;
        }
    }
    let metric = "conquest_operation_seconds";
    head(out, metric, "histogram", "Times of the operations that the mount's server has answered.")?;
    for (labels, kind) in all() {
        let of = format!("{labels},operation=\"{}\"", kind.name);
        let mut sum = 0;
        for last in (WIDTH - 1..conquest::operations::BUCKETS - 1).step_by(WIDTH) {
            let range = last + 1 - WIDTH..=last;
            sum += kind.latencies.iter().filter(|(bucket, _)| range.contains(bucket)).map(|(_, n)| n).sum::<u64>();
            let end = conquest::operations::end(last).as_secs_f64();
            writeln!(out, "{metric}_bucket{{{of},le=\"{end}\"}} {sum}")?;
        }
        writeln!(out, "{metric}_bucket{{{of},le=\"+Inf\"}} {}", kind.requests)?;
        writeln!(out, "{metric}_sum{{{of}}} {}", kind.nanos as f64 / 1e9)?;
        writeln!(out, "{metric}_count{{{of}}} {}", kind.requests)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use conquest::operations::Kind;

    #[test]
    fn buckets_are_cumulative_and_labels_are_escaped() {
        let kind = Kind {
            name: "read".into(),
            requests: 3,
            nanos: 3_000_000,
            latencies: vec![(0, 1), (5, 2)],
            ..Kind::default()
        };
        let operations = Some(Operations { kinds: vec![kind], ..Operations::default() });
        let labels = format!("pool=\"{}\"", label(std::path::Path::new("/a\"b")));
        let mut out = String::new();
        of_operations(&mut out, &[Seen { labels, health: None, brief: None, operations }]).expect("written");
        let counts: Vec<&str> =
            out.lines().filter(|line| line.contains("_bucket")).filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!((counts[0], counts[1], counts.last()), ("1", "3", Some(&"3")), "{out}");
        assert!(out.contains(r#"pool="/a\"b",operation="read",le="0.000002""#), "{out}");
        assert!(out.contains("_sum{") && out.contains(" 0.003\n"), "{out}");
    }
}
