//! The life after a crash: it works, waits and works on, and its power is cut too.

use rng::Rng;

use super::judge::judge;
use super::Depth;
use crate::choice::Choice;
use crate::history::History;
use crate::verdict::{caught, Filter, Stats, Verdicts};

/// Power cuts in that life: each leaves an instant that is allowed.
pub(super) fn cut_later(
    second: &History,
    rng: &mut Rng,
    id: &dyn Fn(&str) -> String,
    depth: Depth,
    filter: &Filter,
    verdicts: &mut Verdicts,
) {
    let all = second.moments.iter().filter(|moment| moment.event.reaches_a_disk()).count().max(1) as u64;
    for (at, files) in second.start.files.over(&second.moments) {
        let drawn = rng.below(all) < depth.mixed;
        for choice in files.choices(depth.seeds) {
            let text = format!("{at}/{}", choice.name());
            let here = filter.choice.map_or(drawn, |wanted| wanted == text);
            if !here || verdicts.enough() {
                continue;
            }
            verdicts.stats.mixed += 1;
            let mut stats = Stats::default();
            let judged = caught(|| judge(second, at, &files.cut(choice), filter.choice.is_some(), &mut stats));
            verdicts.take(judged.map(drop), || id(&text));
        }
    }
    // The last wait holds, also if all in doubt is lost.
    let end = second.moments.len();
    if filter.choice.is_none() {
        let mut files = second.start.files.clone();
        second.moments.iter().for_each(|moment| files.apply(&moment.event));
        let judged = caught(|| judge(second, end, &files.cut(Choice::None), false, &mut Stats::default()));
        verdicts.take(judged.map(drop), || id(&format!("{end}/none")));
    }
}

#[cfg(test)]
mod tests {
    use super::super::plot::Plot;
    use super::*;
    use crate::scenario::rich;
    use crate::story::{tell, Story};
    use crate::tape::{Event, Point};

    /// The last life of a story whose power was cut at its end.
    fn second() -> History {
        let history = tell(&Story::of(&rich(), Plot::Plain)).unwrap();
        let end = history.moments.len();
        let (_, left) = history.stills(vec![Point::after(end)]).next().unwrap();
        judge(&history, end, &left.files.cut(Choice::None), true, &mut Stats::default()).unwrap().unwrap()
    }

    fn failures(second: &History) -> usize {
        let (mut rng, mut verdicts) = (Rng::new(1), Verdicts::default());
        let depth = Depth { mixed: 20, seeds: 2, ..Depth::deep() };
        cut_later(second, &mut rng, &|what| what.into(), depth, &Filter::default(), &mut verdicts);
        verdicts.failures.len()
    }

    #[test]
    fn a_flush_that_is_missing_in_the_second_life_is_found() {
        let mut second = second();
        assert_eq!(failures(&second), 0);
        assert!(second.moments.len() > 10 && second.start.files.choices(1).len() == 1);
        let of_a_log = |event: &Event| matches!(event, Event::Flush { file: 1 | 2 });
        second.moments.iter_mut().filter(|m| of_a_log(&m.event)).for_each(|m| m.event = Event::Rest);
        assert!(failures(&second) > 0);
    }
}
