//! Decides by the notes that are there which members of a duplex count.
//!
//! A note records the states of all members at its time. Each change of them has an [epoch](Epoch) with a stamp. The
//! note of the last epoch counts; two that diverged from a common one are refused. An excluded member's note may not
//! record its exclusion, and that note alone cannot tell. So regions that are no members remember the states
//! too.

use crate::label::Relation;

use super::raw::{Completeness, Member, Said, Spans, MEMBERS};

/// Why a duplex cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("no region has it, or says where it lies")]
    None,
    /// Both were used, each without the other.
    #[error(
        "regions {one} and {other} were each used without the other (epochs {} and {}): what either has since is not in the other; take \
         the disk away whose content counts less", .epochs[0], .epochs[1]
    )]
    Split { one: u32, other: u32, epochs: [u64; 2] },
    /// The present members missed writes that the missing ones have.
    #[error("{}", stale(.there, .missing))]
    Stale { there: Vec<Member>, missing: Vec<u32> },
    #[error("{0}")]
    Transfer(crate::Error),
}

impl From<crate::Error> for Refusal {
    fn from(e: crate::Error) -> Refusal {
        Refusal::Transfer(e)
    }
}

fn stale(there: &[Member], missing: &[u32]) -> String {
    let list = |numbers: Vec<u32>| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ");
    let missing = list(missing.to_vec());
    match there {
        [] => format!("it lies in region {missing}, which is missing: attach its disk"),
        [first, ..] => format!(
            "region {} stayed behind: it missed what was written since {}, and region {missing}, which has it, is missing: attach its disk",
            list(there.iter().map(|member| member.region).collect()),
            crate::duplex::time(first.since)
        ),
    }
}

/// The result of all notes.
#[derive(Clone, Debug)]
pub struct Found {
    /// The note that counts.
    pub said: Said,
    /// The places of the streams, by member, as far as its note is there.
    pub spans: [Option<Spans>; MEMBERS],
}

/// Evaluates the notes of these regions.
pub fn judge(notes: &[(u32, Said)]) -> Result<Found, Refusal> {
    let newest = notes.iter().map(|(_, said)| (said.created, said.id)).max().ok_or(Refusal::None)?;
    let notes: Vec<&(u32, Said)> = notes.iter().filter(|(_, said)| (said.created, said.id) == newest).collect();
    for (n, (one, first)) in notes.iter().enumerate() {
        for (other, second) in &notes[n + 1..] {
            if first.epoch.relation(&second.epoch) == Relation::Split {
                let epochs = [first.epoch.number(), second.epoch.number()];
                return Err(Refusal::Split { one: *one, other: *other, epochs });
            }
        }
    }
    // In one epoch, a member's note, since it has the segments of its region.
    let holds = |(_, said): &&&(u32, Said)| (said.epoch.number(), said.me.is_some());
    let (_, said) = notes.iter().max_by_key(holds).ok_or(Refusal::None)?;
    let own = |(n, member): (usize, &Option<Member>)| {
        let member = (*member)?;
        let note = notes.iter().find(|(region, note)| *region == member.region && note.me == Some(n))?;
        Some(note.1.spans.clone())
    };
    let mut spans: [Option<Spans>; MEMBERS] = Default::default();
    for (to, n) in spans.iter_mut().zip(0..) {
        *to = own((n, &said.members[n]));
    }
    let found = Found { said: said.clone(), spans };
    let is_usable = found.whole().next().is_some();
    match is_usable {
        true => Ok(found),
        false => Err(found.stale()),
    }
}

impl Found {
    /// The whole members that are there.
    pub fn whole(&self) -> impl Iterator<Item = (usize, Member)> + '_ {
        let members = self.said.members.iter().enumerate().filter_map(|(n, member)| Some((n, (*member)?)));
        members.filter(|(n, member)| member.state == Completeness::Whole && self.spans[*n].is_some())
    }

    fn stale(&self) -> Refusal {
        let members = || self.said.members.iter().enumerate().filter_map(|(n, member)| Some((n, (*member)?)));
        let there = members().filter(|(n, _)| self.spans[*n].is_some()).map(|(_, member)| member).collect();
        let missing = members().filter(|(n, member)| self.spans[*n].is_none() && member.state == Completeness::Whole);
        Refusal::Stale { there, missing: missing.map(|(_, member)| member.region).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::Epoch;

    fn note(me: Option<usize>, epoch: Epoch, states: [Completeness; 2]) -> Said {
        let member = |n: u32| Some(Member { region: n, state: states[n as usize], since: 0 });
        Said {
            id: 1,
            created: 1,
            epoch,
            segment: 1 << 20,
            members: [member(0), member(1), None],
            me,
            spans: Spans::default(),
            extra: Vec::new(),
        }
    }

    const BOTH: [Completeness; 2] = [Completeness::Whole; 2];
    const FIRST_OUT: [Completeness; 2] = [Completeness::Out, Completeness::Whole];

    #[test]
    fn the_note_of_the_last_epoch_holds_and_the_excluded_one_alone_does_not_count() {
        let (first, second) = (Epoch::first(1), Epoch::first(1).next(2));
        let (old, new) = ((0, note(Some(0), first, BOTH)), (1, note(Some(1), second, FIRST_OUT)));
        let found = judge(&[old.clone(), new.clone()]).expect("one counts");
        assert!(found.whole().map(|(n, _)| n).eq([1]));
        assert!(judge(std::slice::from_ref(&new)).expect("alone").whole().map(|(n, _)| n).eq([1]));
        let witness = (7, note(None, second, FIRST_OUT));
        let refused = judge(&[old.clone(), witness]).expect_err("somebody knows better");
        assert!(matches!(&refused, Refusal::Stale { missing, .. } if *missing == [1]), "{refused}");
        assert!(refused.to_string().contains("region 0 stayed behind"), "{refused}");
        assert_eq!(judge(&[old]).expect("nobody knows better").whole().count(), 1);
    }

    #[test]
    fn halves_that_were_used_apart_are_refused() {
        let first = Epoch::first(1);
        let notes = [
            (0, note(Some(0), first.next(2), [Completeness::Whole, Completeness::Out])),
            (1, note(Some(1), first.next(3), FIRST_OUT)),
        ];
        assert!(matches!(judge(&notes), Err(Refusal::Split { .. })));
        assert!(matches!(judge(&[]), Err(Refusal::None)));
    }

    #[test]
    fn of_two_that_were_made_the_later_counts() {
        let old = (0, note(Some(0), Epoch::first(1).next(2).next(3), BOTH));
        let new = (1, Said { id: 2, created: 2, ..note(Some(1), Epoch::first(9), BOTH) });
        assert_eq!(judge(&[old, new]).expect("there is one").said.id, 2);
    }
}
