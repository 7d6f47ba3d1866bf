//! POSIX access control lists, as acl(5) tells, in the encoding of the kernel's extended attributes.
//!
//! ```text
//! version 2 (4) | entries: tag (2) | permissions (2) | uid or gid (4)      all little-endian
//! ```
//! An access ACL that says no more than the nine permission bits is not stored: the bits hold it.

use rustix::io::Errno;
use smallvec::SmallVec;

use crate::attr::Caller;
use crate::error::Result;

/// The attribute with the ACL that decides access.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the ACL that new inodes in a directory inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The id of entries that have none.
const NO_ID: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// The ACLs and mode of a new file by its directory's default ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inherited {
    pub mode: u32,
    /// The access ACL, unless the mode says it all.
    pub access: Option<Vec<u8>>,
}

/// The mode that an access ACL stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Folded {
    pub mode: u32,
    /// The mode does not say it all: the ACL is stored.
    pub stored: bool,
}

/// Is `value` the encoding of an ACL?
pub(crate) fn validate(value: &[u8]) -> Result<()> {
    Acl::parse(value).map(|_| ())
}

/// Has a valid `value` no entries? Setting it removes the ACL.
pub(crate) fn is_empty(value: &[u8]) -> bool {
    value.len() <= VERSION.to_le_bytes().len()
}

/// The mode of a file with this access ACL and so far `mode`, whose higher bits it keeps.
pub(crate) fn fold(value: &[u8], mode: u32) -> Result<Folded> {
    Ok(match Acl::parse(value)? {
        Some(acl) => Folded { mode: mode & !0o777 | acl.mode(), stored: !acl.is_mode() },
        None => Folded { mode, stored: false },
    })
}

/// The ACLs of a file created with `mode` by the default ACL of its directory; the umask does not count. A
/// directory also gets the default ACL itself.
pub(crate) fn inherit(default: &[u8], mode: u32) -> Result<Inherited> {
    let Some(mut acl) = Acl::parse(default)? else { return Ok(Inherited { mode, access: None }) };
    acl.chmod(acl.mode() & mode);
    let access = (!acl.is_mode()).then(|| acl.encode());
    Ok(Inherited { mode: mode & !0o777 | acl.mode(), access })
}

/// The access ACL after chmod to `mode`.
pub(crate) fn chmod(value: &[u8], mode: u32) -> Result<Vec<u8>> {
    let Some(mut acl) = Acl::parse(value)? else { return Ok(value.to_vec()) };
    acl.chmod(mode);
    Ok(acl.encode())
}

/// Does the access ACL of a file of `owner` and `group` let `caller` do all of `want` (read 4, write 2,
/// execute 1)? The superuser's rights are not looked at. A damaged ACL permits nothing.
pub(crate) fn permits(value: &[u8], caller: &Caller, owner: u32, group: u32, want: u32) -> bool {
    match Acl::parse(value) {
        Ok(Some(acl)) => acl.permits(caller, owner, group, want as u16),
        _ => false,
    }
}

/// A valid ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Acl(SmallVec<[Entry; 8]>);

impl Acl {
    /// Decodes the value of an attribute; `None` for one without entries, which removes the ACL.
    fn parse(value: &[u8]) -> Result<Option<Acl>> {
        let Some((version, entries)) = value.split_first_chunk::<4>() else { return Err(Errno::INVAL.into()) };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::OPNOTSUPP.into());
        }
        if entries.len() % 8 != 0 {
            return Err(Errno::INVAL.into());
        }
        let entries: SmallVec<[Entry; 8]> = entries.chunks_exact(8).map(Entry::decode).collect();
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl(entries);
        acl.validate()?;
        Ok(Some(acl))
    }

    /// The value of the attribute.
    fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for e in &self.0 {
            value.extend_from_slice(&e.tag.to_le_bytes());
            value.extend_from_slice(&e.perm.to_le_bytes());
            value.extend_from_slice(&e.id.to_le_bytes());
        }
        value
    }

    /// The order of acl(5): owner, users, group, groups, mask, others; with a mask if there are users or
    /// groups beside the owner's.
    fn validate(&self) -> Result<()> {
        // The last entry but for named ones, 0 at the start.
        let (mut after, mut named) = (0, false);
        for e in &self.0 {
            let in_place = match e.tag {
                USER_OBJ => after == 0,
                USER => after == USER_OBJ && e.id != NO_ID,
                GROUP_OBJ => after == USER_OBJ,
                GROUP => after == GROUP_OBJ && e.id != NO_ID,
                MASK => after == GROUP_OBJ,
                OTHER => after == MASK || (after == GROUP_OBJ && !named),
                _ => false,
            };
            if !in_place || e.perm & !7 != 0 {
                return Err(Errno::INVAL.into());
            }
            match e.tag {
                USER | GROUP => named = true,
                tag => after = tag,
            }
        }
        match after {
            OTHER => Ok(()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn get(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    fn get_mut(&mut self, tag: u16) -> Option<&mut u16> {
        self.0.iter_mut().find(|e| e.tag == tag).map(|e| &mut e.perm)
    }

    /// The entry that the group bits of the mode stand for.
    fn group_class(&mut self) -> Option<&mut u16> {
        let tag = if self.get(MASK).is_some() { MASK } else { GROUP_OBJ };
        self.get_mut(tag)
    }

    /// The nine permission bits that the ACL corresponds to.
    fn mode(&self) -> u32 {
        let bits = |tag| u32::from(self.get(tag).unwrap_or(0));
        let group = self.get(MASK).map_or_else(|| bits(GROUP_OBJ), u32::from);
        bits(USER_OBJ) << 6 | group << 3 | bits(OTHER)
    }

    /// Does [`mode`](Acl::mode) say all that the ACL says? Then it need not be stored.
    fn is_mode(&self) -> bool {
        self.0.iter().all(|e| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// An access ACL after chmod: the owner's, the group class's and the others' bits.
    fn chmod(&mut self, mode: u32) {
        let bits = |shift: u32| (mode >> shift & 7) as u16;
        for (perm, bits) in [(USER_OBJ, bits(6)), (OTHER, bits(0))] {
            if let Some(p) = self.get_mut(perm) {
                *p = bits;
            }
        }
        if let Some(p) = self.group_class() {
            *p = bits(3);
        }
    }

    /// The algorithm of acl(5).
    fn permits(&self, who: &Caller, owner: u32, group: u32, want: u16) -> bool {
        let mask = self.get(MASK).unwrap_or(7);
        let grants = |perm: u16| perm & want == want;
        if who.uid == owner {
            return grants(self.get(USER_OBJ).unwrap_or(0));
        }
        if let Some(e) = self.0.iter().find(|e| e.tag == USER && e.id == who.uid) {
            return grants(e.perm & mask);
        }
        let mut groups = self
            .0
            .iter()
            .filter(|e| match e.tag {
                GROUP_OBJ => who.in_group(group),
                GROUP => who.in_group(e.id),
                _ => false,
            })
            .peekable();
        if groups.peek().is_some() {
            return groups.any(|e| grants(e.perm & mask));
        }
        grants(self.get(OTHER).unwrap_or(0))
    }
}

impl Entry {
    fn decode(bytes: &[u8]) -> Entry {
        let word = |i| u16::from_le_bytes([bytes[i], bytes[i + 1]]);
        let tag = word(0);
        let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        // The id of entries that have none is ignored.
        Entry { tag, perm: word(2), id: if matches!(tag, USER | GROUP) { id } else { NO_ID } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|(tag, perm, id)| Entry { tag: *tag, perm: *perm, id: *id }).collect())
    }

    fn parse(a: &Acl) -> std::result::Result<Option<Acl>, Errno> {
        Acl::parse(&a.encode()).map_err(|e| e.errno())
    }

    /// u::rwx u:10:rwx u:11:r g::r-x g:20:rw g:21:x m::rw o::x
    fn example() -> Acl {
        acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 7, 10),
            (USER, 4, 11),
            (GROUP_OBJ, 5, NO_ID),
            (GROUP, 6, 20),
            (GROUP, 1, 21),
            (MASK, 6, NO_ID),
            (OTHER, 1, NO_ID),
        ])
    }

    fn minimal(mode: u32) -> Acl {
        let bits = |shift: u32| (mode >> shift & 7) as u16;
        acl(&[(USER_OBJ, bits(6), NO_ID), (GROUP_OBJ, bits(3), NO_ID), (OTHER, bits(0), NO_ID)])
    }

    #[test]
    fn valid_values_survive_a_round_trip() {
        for a in [example(), minimal(0o644)] {
            assert_eq!(parse(&a), Ok(Some(a.clone())));
        }
        assert_eq!(example().encode().len(), 4 + 8 * 8);
        // setfacl(1) writes these bytes for u::rw-,u:1000:r--,g::r--,m::r--,o::---
        let bytes = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
        let a = Acl::parse(bytes).unwrap().unwrap();
        assert_eq!((a.mode(), a.is_mode()), (0o640, false));
        assert_eq!(a.encode(), bytes);
    }

    #[test]
    fn bad_values_are_refused() {
        let inval = |entries: &[(u16, u16, u32)]| assert_eq!(parse(&acl(entries)), Err(Errno::INVAL), "{entries:?}");
        inval(&[(USER_OBJ, 7, NO_ID)]);
        inval(&[(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 7, NO_ID)]);
        inval(&[(GROUP_OBJ, 7, NO_ID), (USER_OBJ, 7, NO_ID), (OTHER, 7, NO_ID)]);
        inval(&[(USER_OBJ, 8, NO_ID), (GROUP_OBJ, 7, NO_ID), (OTHER, 7, NO_ID)]);
        inval(&[(USER_OBJ, 7, NO_ID), (USER_OBJ, 7, NO_ID), (GROUP_OBJ, 7, NO_ID), (OTHER, 7, NO_ID)]);
        inval(&[(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 7, NO_ID), (OTHER, 7, NO_ID), (OTHER, 7, NO_ID)]);
        // Named entries want a mask, and an id.
        inval(&[(USER_OBJ, 7, NO_ID), (USER, 7, 5), (GROUP_OBJ, 7, NO_ID), (OTHER, 7, NO_ID)]);
        inval(&[(USER_OBJ, 7, NO_ID), (USER, 7, NO_ID), (GROUP_OBJ, 7, NO_ID), (MASK, 7, NO_ID), (OTHER, 7, NO_ID)]);
        inval(&[(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 7, NO_ID), (3, 7, NO_ID), (OTHER, 7, NO_ID)]);
        let errno = |bytes: &[u8]| Acl::parse(bytes).map_err(|e| e.errno());
        assert_eq!(errno(b""), Err(Errno::INVAL));
        assert_eq!(errno(b"\x02\0\0"), Err(Errno::INVAL));
        assert_eq!(errno(b"\x01\0\0\0"), Err(Errno::OPNOTSUPP));
        assert_eq!(errno(b"\x02\0\0\0\x01"), Err(Errno::INVAL));
        assert_eq!(errno(b"\x02\0\0\0"), Ok(None));
    }

    #[test]
    fn only_owner_group_and_others_fold_into_the_mode() {
        assert_eq!((minimal(0o751).mode(), minimal(0o751).is_mode()), (0o751, true));
        // The group bits of the mode are the mask.
        assert_eq!((example().mode(), example().is_mode()), (0o761, false));
    }

    #[test]
    fn chmod_changes_the_mask_where_there_is_one() {
        let mut a = example();
        a.chmod(0o640);
        assert_eq!(
            (a.get(USER_OBJ), a.get(GROUP_OBJ), a.get(MASK), a.get(OTHER)),
            (Some(6), Some(5), Some(4), Some(0))
        );
        let mut a = minimal(0o777);
        a.chmod(0o640);
        assert_eq!(a, minimal(0o640));
    }

    #[test]
    fn new_files_get_what_default_and_mode_both_allow() {
        let default = example().encode();
        let got = inherit(&default, 0o1666).unwrap();
        assert_eq!(got.mode, 0o1660);
        let access = Acl::parse(&got.access.unwrap()).unwrap().unwrap();
        assert_eq!((access.get(USER_OBJ), access.get(MASK), access.get(OTHER)), (Some(6), Some(6), Some(0)));
        // Named entries and the group stay as they are; the mask limits them.
        assert_eq!((access.0[1].perm, access.get(GROUP_OBJ)), (7, Some(5)));
        assert_eq!(inherit(&default, 0o777).unwrap().mode, 0o761);
        // A default ACL that is only a mode leaves no access ACL.
        let got = inherit(&minimal(0o750).encode(), 0o666).unwrap();
        assert_eq!(got, Inherited { mode: 0o640, access: None });
    }

    #[test]
    fn setting_an_access_acl_sets_the_mode() {
        assert_eq!(fold(&example().encode(), 0o4000).unwrap(), Folded { mode: 0o4761, stored: true });
        assert_eq!(fold(&minimal(0o640).encode(), 0o777).unwrap(), Folded { mode: 0o640, stored: false });
        assert_eq!(fold(b"\x02\0\0\0", 0o755).unwrap(), Folded { mode: 0o755, stored: false });
        assert!(is_empty(b"\x02\0\0\0") && !is_empty(&minimal(0).encode()));
    }

    #[test]
    fn access_follows_the_first_entry_that_fits() {
        // Owner 1, group 2.
        let permits = |a: &Acl, uid, gid, groups: &[u32], want| {
            let caller = Caller { uid, gid, groups, umask: 0, checked: false, owns: &[] };
            permits(&a.encode(), &caller, 1, 2, want)
        };
        let a = example();
        // The owner: not masked, and no other entries help.
        assert!(permits(&a, 1, 9, &[], 7));
        assert!(!permits(&acl(&[(USER_OBJ, 0, NO_ID), (GROUP_OBJ, 7, NO_ID), (OTHER, 7, NO_ID)]), 1, 2, &[], 4));
        // A named user: masked; groups do not add.
        assert!(permits(&a, 10, 9, &[], 6) && !permits(&a, 10, 9, &[], 1));
        assert!(permits(&a, 11, 20, &[], 4) && !permits(&a, 11, 20, &[], 2));
        // Groups: any one that grants all; not the sum of two; masked.
        assert!(permits(&a, 5, 2, &[], 4) && !permits(&a, 5, 2, &[], 1));
        assert!(permits(&a, 5, 9, &[20], 6));
        assert!(!permits(&a, 5, 21, &[], 1), "the mask takes it away");
        assert!(permits(&a, 5, 2, &[20, 21], 6));
        // In a group that grants nothing: the others' entry does not count.
        assert!(!permits(&a, 5, 21, &[], 4));
        // Others.
        assert!(permits(&a, 5, 9, &[8], 1) && !permits(&a, 5, 9, &[8], 4));
    }
}
