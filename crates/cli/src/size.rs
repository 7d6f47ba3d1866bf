//! Sizes as users write them (`512M`, `1.5G`), and the default size of a pool.

use std::path::Path;

use conquest::MediumKind;
use conquest::{Rate, Threshold};

use crate::failure::{Context, Failure, Result};

const UNITS: [(&str, u64); 5] = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40), ("B", 1)];

/// Settings that are times, and those that are percentages.
const TIMES: [&str; 4] = ["warm", "cold", "packed", "age"];
const PERCENTS: [&str; 5] = ["floor", "ceiling", "dirty", "pressure", "share"];

/// The smallest default pool.
const SMALLEST_DEFAULT: u64 = 64 << 20;
/// Default sizes are multiples of this.
const GRAIN: u64 = 1 << 20;

/// Reads `64M`, `1.5G`, `512MiB`, `1048576`; units are powers of 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write it like 64M, 1.5G or 1048576");
    let upper = text.trim().to_ascii_uppercase();
    let digits = upper.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &upper[digits.len()..];
    let short = unit.strip_suffix("IB").unwrap_or(if unit.len() > 1 { unit.trim_end_matches('B') } else { unit });
    let factor = match short {
        "" => 1,
        _ => UNITS.iter().find(|(name, _)| *name == short).ok_or_else(wrong)?.1,
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(wrong);
    }
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number * factor as f64;
    if digits.is_empty() || !(0.0..u64::MAX as f64).contains(&bytes) {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

/// Reads a rate such as `100M` or `100M/s`, in bytes a second.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    parse(text.strip_suffix("/s").unwrap_or(text))?.try_into()
}

/// Reads the size beyond which a file's content goes to disk.
pub fn parse_threshold(text: &str) -> Result<Threshold, String> {
    parse(text)?.try_into()
}

/// Reads `NAME=VALUE`; the value is a number or a size.
pub fn parse_setting(text: &str) -> Result<(String, u64), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.into(), parse_value(name, value)?)),
        None => Err("give NAME=VALUE, as in `ceiling=50`".into()),
    }
}

/// A number in the unit of its setting.
fn parse_value(name: &str, value: &str) -> Result<u64, String> {
    if let Ok(number) = value.parse() {
        return Ok(number);
    }
    match () {
        () if TIMES.contains(&name) => parse_seconds(value),
        () if PERCENTS.contains(&name) => {
            let number = value.strip_suffix('%').and_then(|number| number.trim_end().parse().ok());
            number.ok_or_else(|| format!("`{value}` is no percentage; write it like 50 or 50%"))
        }
        () => parse(value),
    }
}

/// Reads `90`, `90s`, `10m`, `2h`, `1d`.
fn parse_seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no time; write it in seconds, or like 90s, 10m, 2h or 1d");
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        Some((at, 'd')) => (&text[..at], 86_400),
        _ => return Err(wrong()),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)
}

/// Writes a size for users: `1.5 GiB`.
pub fn show(bytes: u64) -> String {
    let (name, factor) = match bytes {
        b if b >= 1 << 40 => ("TiB", 1u64 << 40),
        b if b >= 1 << 30 => ("GiB", 1 << 30),
        b if b >= 1 << 20 => ("MiB", 1 << 20),
        b if b >= 1 << 10 => ("KiB", 1 << 10),
        _ => return format!("{bytes} B"),
    };
    let value = bytes as f64 / factor as f64;
    if value.fract() < 0.05 {
        format!("{value:.0} {name}")
    } else {
        format!("{value:.1} {name}")
    }
}

/// A quarter of the machine's RAM, at most half of the free space where the pool will lie; on `logged` also at most half
/// of the free shared memory, which containers have little of.
pub fn default_for(pool: &Path, medium: MediumKind) -> Result<u64> {
    let info = rustix::system::sysinfo();
    let ram = info.totalram as u64 * u64::from(info.mem_unit.max(1));
    let mut place = pool.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new("/"));
    let mut free = free_in(place)?;
    if medium == MediumKind::Logged {
        let memory = Path::new("/dev/shm");
        let free_there = free_in(memory)?;
        if free_there < free {
            (place, free) = (memory, free_there);
        }
    }
    if free / 2 < SMALLEST_DEFAULT {
        return Err(Failure::new(format!(
            "{} has only {} free, too little for a pool; free some space, or name another place or a size \
             (`conquest format POOL --nvram SIZE`)",
            place.display(),
            show(free)
        )));
    }
    Ok((ram / 4).min(free / 2).max(SMALLEST_DEFAULT) / GRAIN * GRAIN)
}

fn free_in(place: &Path) -> Result<u64> {
    let stat =
        rustix::fs::statvfs(place).context(|| format!("cannot ask for the free space of {}", place.display()))?;
    Ok(stat.f_bavail * stat.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64M", 64 << 20), ("64m", 64 << 20), ("1.5G", 3 << 29), ("2GiB", 2 << 30)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for (text, bytes) in [("1TB", 1 << 40), ("10KB", 10 << 10), ("7B", 7)] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "-1", "1X", "big", "1e", "99999999999999999999", "99999999T", "./64M", "/dev/pmem0"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_have_bounds() {
        for (text, bytes) in [("64K", 64 << 10), ("100M", 100 << 20), ("1.5G/s", 3 << 29), ("1T", 1 << 40)] {
            assert_eq!(parse_rate(text).map(u64::from), Ok(bytes), "{text}");
        }
        for (text, named) in [("0", "64 KiB to 1 TiB"), ("63K", "64 KiB"), ("2T", "1 TiB"), ("fast", "`fast`")] {
            assert!(parse_rate(text).unwrap_err().contains(named), "{text}");
        }
    }

    #[test]
    fn thresholds_have_bounds() {
        for (text, bytes) in [("64K", 64 << 10), ("1.5M", 3 << 19), ("1T", 1 << 40)] {
            assert_eq!(parse_threshold(text).map(u64::from), Ok(bytes), "{text}");
        }
        for (text, named) in [("0", "64 KiB to 1 TiB"), ("63K", "64 KiB"), ("2T", "--disk none"), ("big", "`big`")] {
            assert!(parse_threshold(text).unwrap_err().contains(named), "{text}");
        }
    }

    #[test]
    fn settings_are_a_name_and_a_number() {
        assert_eq!(parse_setting("ceiling=50"), Ok(("ceiling".into(), 50)));
        assert_eq!(parse_setting("behind=8M"), Ok(("behind".into(), 8 << 20)));
        assert_eq!(parse_setting("ceiling=50%"), Ok(("ceiling".into(), 50)));
        for (text, seconds) in
            [("warm=10m", 600), ("cold=1d", 86_400), ("age=90s", 90), ("packed=2h", 7200), ("warm=7", 7)]
        {
            assert_eq!(parse_setting(text).map(|(_, value)| value), Ok(seconds), "{text}");
        }
        for text in ["warm=10M", "warm=1.5h", "warm=m", "warm=", "share=1G", "dirty=%", "cold=99999999999999999999d"] {
            assert!(parse_setting(text).is_err(), "{text}");
        }
        assert!(parse_setting("ceiling").unwrap_err().contains("NAME=VALUE"));
        assert!(parse_setting("age=soon").unwrap_err().contains("`soon`"));
    }

    #[test]
    fn sizes_are_shown_for_people() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(64 << 20), "64 MiB");
        assert_eq!(show(3 << 29), "1.5 GiB");
    }
}
