//! The life after a crash: it works, waits and works on, and its power is cut too.

use rng::Rng;

use super::cut::{choices, judge, same_again};
use super::history::{Boundary, History, Still};
use super::story::{Step, Teller};
use super::tape::Moment;
use super::world::World;
use super::{caught, Depth, Filter, Stats, Verdicts};
use crate::crash::Choice;
use crate::explore::{name_of_choice, sweep};
use crate::op::Op;

/// Lives on in `world`, which has been recorded since it was at `start`. `earlier` are the instants of the life before, of
/// which number `promised` was promised.
pub(super) fn live(world: &World, start: Still, earlier: Vec<Boundary>, promised: usize) -> Result<History, String> {
    let fs = world.fs.clone();
    let mut teller = Teller::new(world, &fs);
    teller.remember(earlier, promised);
    teller.note();
    let p = |name: &str| format!("/zz-second-{name}");
    let steps = [
        Step::Op(Op::Create(p("file"), 0o644)),
        Step::Op(Op::Append(p("file"), 2500, 1)),
        Step::Wait,
        Step::Op(Op::Mkdir(p("dir"), 0o755)),
        Step::Checkpoint,
        Step::Wait,
    ];
    for step in &steps {
        teller.step(step)?;
    }
    same_again(world)?;
    sweep(&fs)?;
    teller.note();
    teller.step(&Step::Wait)?;
    let moments = world.tape.stop();
    let (boundaries, acknowledged) = teller.end()?;
    Ok(History { start, moments, boundaries, acknowledged })
}

/// Power cuts in that life: each leaves an instant that is allowed.
pub(super) fn cut_later(
    second: &History,
    rng: &mut Rng,
    id: &dyn Fn(&str) -> String,
    depth: Depth,
    filter: &Filter,
    verdicts: &mut Verdicts,
) {
    let mut files = second.start.files.clone();
    let reached = |m: &&Moment| m.event.reaches_a_disk();
    let all = second.moments.iter().filter(reached).count().max(1) as u64;
    for (n, moment) in second.moments.iter().enumerate() {
        if !moment.event.reaches_a_disk() {
            continue;
        }
        files.apply(&moment.event);
        let drawn = rng.below(all) < depth.mixed;
        for choice in choices(&files, depth.seeds) {
            let told = format!("{}/{}", n + 1, name_of_choice(choice));
            let here = filter.choice.map_or(drawn, |wanted| wanted == told);
            if !here || verdicts.enough() {
                continue;
            }
            verdicts.stats.mixed += 1;
            let mut stats = Stats::default();
            let judged = caught(|| judge(second, n + 1, &files.cut(choice), filter.choice.is_some(), &mut stats));
            verdicts.take(judged.map(drop), || id(&told));
        }
    }
    // The last wait is kept whatever is lost.
    let end = second.moments.len();
    if filter.choice.is_none() {
        let judged = caught(|| judge(second, end, &files.cut(Choice::None), false, &mut Stats::default()));
        verdicts.take(judged.map(drop), || id(&format!("{end}/none")));
    }
}

#[cfg(test)]
mod tests {
    use super::super::cut;
    use super::super::story::{tell, Plot, Story};
    use super::super::tape::Event;
    use super::*;
    use crate::scenario::rich;

    /// The last life of a story whose power was cut at its end.
    fn second() -> History {
        let told = tell(&Story::of(&rich(), Plot::Plain)).unwrap();
        let left = told.world.tape.files().cut(Choice::None);
        let end = told.history.moments.len();
        judge(&told.history, end, &left, true, &mut Stats::default()).unwrap().unwrap()
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
        assert!(second.moments.len() > 10 && cut::choices(&second.start.files, 1).len() == 1);
        let of_a_log = |event: &Event| matches!(event, Event::Flush { file: 1 | 2 });
        second.moments.iter_mut().filter(|m| of_a_log(&m.event)).for_each(|m| m.event = Event::Rest);
        assert!(failures(&second) > 0);
    }
}
