//! The version of the running Linux.

/// For example (6, 18, 4).
pub type Version = (u32, u32, u32);

pub fn version() -> Option<Version> {
    parse(rustix::system::uname().release().to_str().ok()?)
}

fn parse(release: &str) -> Option<Version> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(parse("6.18.44-cloud-amd64"), Some((6, 18, 44)));
        assert_eq!(parse("6.19-rc1"), Some((6, 19, 0)));
        assert_eq!(parse("7.0"), Some((7, 0, 0)));
        assert_eq!(parse("unknown"), None);
        assert!(parse("6.18.3") < Some((6, 18, 4)) && parse("6.100.0") > Some((6, 18, 4)));
    }
}
