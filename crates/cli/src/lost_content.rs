//! Shows lost content to users, and continues without it if they accept.

use std::io::Write;

use conquest::Incomplete;
use conquest_fs::fsck::Lost;
use conquest_fs::Error;

use crate::progress::Beside;

fn name(lost: &Lost) -> String {
    let path = lost.path.as_deref().map(crate::in_line);
    path.unwrap_or_else(|| format!("inode {}, which has no name", lost.ino))
}

pub fn describe(lost: &Lost) -> String {
    let name = name(lost);
    format!("lost: {name}: bytes {}..{}: {}", lost.first, lost.last, lost.why)
}

pub fn describe_zeroed(lost: &Lost) -> String {
    let name = name(lost);
    format!(
        "zeroed: {name}: bytes {}..{} read as zeros from now on; they were lost: {}",
        lost.first, lost.last, lost.why
    )
}

/// Writes such lines to stderr, for commands with another purpose.
pub fn warn(lost: &[Lost]) {
    let mut err = std::io::stderr().lock();
    lost.iter().for_each(|lost| _ = writeln!(err, "{}", crate::plain(&describe(lost))));
}

/// Reports content that is lacking from a pool which is to replace another, and fails unless the caller has `accepted`
/// that.
pub fn judge(found: &Incomplete, accepted: bool, beside: &Beside) -> conquest_fs::Result<()> {
    beside.show(|| {
        warn(&found.lost);
        if accepted || found.is_done {
            let _ = writeln!(std::io::stderr(), "conquest: {found}; the pool is made without it");
        }
    });
    match accepted || found.is_done {
        true => Ok(()),
        false => Err(Error::Pool(format!("{found}. Nothing was changed; to go on all the same, use --accept-lost"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::bytes_beside;

    fn lost(ino: u64, path: Option<&str>) -> Lost {
        let path = path.map(Into::into);
        Lost { ino, path, first: 4096, last: 12_287, why: "its segment was used again".into(), for_good: true }
    }

    #[test]
    fn a_file_without_a_name_is_reported_by_its_number() {
        assert_eq!(
            describe(&lost(9, Some("/films/one"))),
            "lost: /films/one: bytes 4096..12287: its segment was used again"
        );
        assert!(describe(&lost(9, None)).starts_with("lost: inode 9, which has no name: bytes 4096..12287"));
    }

    #[test]
    fn what_is_lost_is_a_reason_not_to_go_on_unless_it_is_accepted_or_done() {
        let (_, beside) = bytes_beside("making");
        let found = |is_done| Incomplete { lost: vec![lost(9, None), lost(9, None)], unknown: None, is_done };
        let refusal = judge(&found(false), false, &beside).expect_err("it is refused").to_string();
        assert!(refusal.contains("content of 1 file.") && refusal.contains("--accept-lost"), "{refusal}");
        assert!(judge(&found(false), true, &beside).is_ok());
        assert!(judge(&found(true), false, &beside).is_ok());
        let unknown = Incomplete { lost: Vec::new(), unknown: Some("no room".into()), is_done: false };
        let refusal = judge(&unknown, false, &beside).expect_err("it is refused").to_string();
        assert!(refusal.contains("is unknown") && refusal.contains("no room. Nothing was changed"), "{refusal}");
    }
}
