//! Decides the next step for a service that misses its goal: which mode of its policy's ladder to try, or why
//! to try none.

use model::{DeliveryMode, Nanoseconds, Rung, Search};

/// The inputs of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchInputs {
    /// The current time, in microseconds since 1970.
    pub unix_micros: u64,
    /// How long the goal has been missed; `None` if it is met.
    pub missed: Option<Nanoseconds>,
    /// How long the goal must have been missed before a rung is tried.
    pub patience: Nanoseconds,
    /// The maximum number of tries per day.
    pub a_day: usize,
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub enum Next<'l, T> {
    /// The goal is met, or has not been missed long enough.
    NotDue,
    /// The daily limit is reached. The next try is at this time, in microseconds since 1970.
    EnoughToday(u64),
    /// Try this rung; `can` returned the value.
    Try(&'l Rung, T),
    /// Every rung that can be tried has been tried. The list has the other rungs, with reasons.
    Exhausted(Vec<(DeliveryMode, String)>),
}

/// Chooses the first rung that is not in force, was not tried, and can be tried. `can` returns what a try of
/// a mode needs, or why it is impossible. It is not called for rungs after the chosen one.
pub fn next_try<'l, T>(
    search: &mut Search,
    ladder: &'l [Rung],
    in_force: DeliveryMode,
    moment: SearchInputs,
    mut can: impl FnMut(&Rung) -> Result<T, String>,
) -> Next<'l, T> {
    if moment.missed.is_none_or(|missed| missed < moment.patience) {
        return Next::NotDue;
    }
    let (tries, again_at) = search.tries_of_the_day(moment.unix_micros);
    let mut refused: Vec<(DeliveryMode, String)> = Vec::new();
    for rung in ladder.iter().take(Rung::COUNT_MAX) {
        if rung.mode == in_force || search.is_closed(rung.mode) {
            continue;
        }
        match can(rung) {
            // A ladder may list a mode once for each kind of target, so keep only one reason for each mode.
            Ok(_) if tries >= moment.a_day => return Next::EnoughToday(again_at.unwrap_or(u64::MAX)),
            Ok(taken) => return Next::Try(rung, taken),
            Err(why) => {
                refused.retain(|(mode, _)| *mode != rung.mode);
                refused.push((rung.mode, why));
            }
        }
    }
    Next::Exhausted(refused)
}

#[cfg(test)]
mod test {
    use std::collections::BTreeSet;

    use model::policy::Match;
    use model::{Chance, Intent, Label, Pid, PolicyName, ProcessId, Reason, Ruling, Searches, Target};
    use proptest::prelude::*;

    use super::*;

    const MISSED: SearchInputs = SearchInputs {
        unix_micros: 1_000_000,
        missed: Some(Nanoseconds::from_millis(400_000)),
        patience: Nanoseconds::from_millis(300_000),
        a_day: 6,
    };

    fn rungs(modes: &[&str]) -> Vec<Rung> {
        let rung = |mode: &&str| Rung {
            mode: mode.parse().expect("a mode"),
            because: Reason::new("the rung may be better", "a test"),
            measured_on: Vec::new(),
            when: model::When::default(),
        };
        modes.iter().map(rung).collect()
    }

    fn search() -> Search {
        let target = Target::Service("cache".to_owned(), Match::default());
        Search::of(&Intent::new(target, PolicyName::Latency, ""), processes(1))
    }

    fn processes(pid: u32) -> BTreeSet<ProcessId> {
        BTreeSet::from([ProcessId { pid: Pid(pid), started: 1, comm: Label::new("cache") }])
    }

    fn next<'l>(search: &mut Search, ladder: &'l [Rung], moment: SearchInputs) -> Next<'l, ()> {
        next_try(search, ladder, DeliveryMode::Interrupt, moment, |_| Ok(()))
    }

    #[test]
    fn nothing_is_tried_for_a_goal_that_is_met_or_not_missed_for_long_enough() {
        let ladder = rungs(&["suspend20"]);
        for missed in [None, Some(Nanoseconds::from_millis(299_999))] {
            assert_eq!(next(&mut search(), &ladder, SearchInputs { missed, ..MISSED }), Next::NotDue);
        }
        assert!(matches!(next(&mut search(), &ladder, MISSED), Next::Try(..)));
    }

    #[test]
    fn what_is_in_force_was_put_back_or_cannot_be_is_left_out_and_the_last_is_said_with_its_reason() {
        let ladder = rungs(&["interrupt", "suspend20", "eventbusy", "defer50", "defer20"]);
        let mut search = search();
        search.begin(ladder[1].mode, DeliveryMode::Interrupt, 7);
        search.end(ladder[1].mode, Ruling::CannotTell, None);
        let mut asked = Vec::new();
        let can = |rung: &Rung| {
            asked.push(rung.mode.to_string());
            if rung.mode == ladder[3].mode { Ok(9) } else { Err("beyond its budget".to_owned()) }
        };
        let found = next_try(&mut search, &ladder, DeliveryMode::Interrupt, MISSED, can);
        assert_eq!(found, Next::Try(&ladder[3], 9));
        assert_eq!(asked, ["eventbusy", "defer50"], "no rung after the first usable one is checked");
        let none = next_try(&mut search, &ladder, DeliveryMode::Interrupt, MISSED, |rung: &Rung| {
            if rung.mode == ladder[2].mode {
                Err::<(), _>("no budget".to_owned())
            } else {
                Err("no".to_owned())
            }
        });
        let Next::Exhausted(refused) = none else { panic!("{none:?}") };
        let refused: Vec<(String, &str)> =
            refused.iter().map(|(mode, why)| (mode.to_string(), why.as_str())).collect();
        let named = |mode: &str, why| (mode.to_owned(), why);
        assert_eq!(
            refused,
            [named("eventbusy", "no budget"), named("defer50", "no"), named("defer20", "no")]
        );
    }

    #[test]
    fn the_mode_that_another_was_better_than_is_not_tried_against_it() {
        let ladder = rungs(&["interrupt", "suspend20", "defer50"]);
        let mut search = search();
        search.begin(ladder[1].mode, DeliveryMode::Interrupt, 7);
        search.end(ladder[1].mode, Ruling::Better, None);
        let found = next_try(&mut search, &ladder, ladder[1].mode, MISSED, |_| Ok(()));
        assert_eq!(found, Next::Try(&ladder[2], ()));
    }

    #[test]
    fn tries_count_for_a_day_whatever_became_of_them_and_also_where_the_clock_was_set_back() {
        let ladder = rungs(&["suspend20", "defer50"]);
        let mut search = search();
        for _ in 0..MISSED.a_day {
            search.begin(ladder[0].mode, DeliveryMode::Interrupt, MISSED.unix_micros);
            search.end(ladder[0].mode, Ruling::Interrupted, None);
        }
        let at = |unix_micros| SearchInputs { unix_micros, ..MISSED };
        let tomorrow = MISSED.unix_micros + Searches::DAY_MICROS;
        assert_eq!(next(&mut search.clone(), &ladder, MISSED), Next::EnoughToday(tomorrow));
        assert_eq!(next(&mut search.clone(), &ladder, at(tomorrow - 1)), Next::EnoughToday(tomorrow));
        assert!(matches!(next(&mut search.clone(), &ladder, at(tomorrow)), Next::Try(..)));
        let early = next(&mut search, &ladder, at(10));
        assert_eq!(
            early,
            Next::EnoughToday(10 + Searches::DAY_MICROS),
            "the tries count from now on, for one more day"
        );
    }

    #[test]
    fn a_daemon_that_may_not_try_says_when_and_never_that_nothing_is_left() {
        let ladder = rungs(&["suspend20"]);
        let none = SearchInputs { a_day: 0, ..MISSED };
        assert_eq!(next(&mut search(), &ladder, none), Next::EnoughToday(u64::MAX));
    }

    /// An event in the life of a service and its daemon.
    #[derive(Clone, Debug)]
    enum Happens {
        Ruling(Ruling),
        /// The daemon is killed during a try.
        Killed,
        Restart,
        Hours(u64),
        Refused,
    }

    fn happens() -> impl Strategy<Value = Happens> {
        let ruling = prop::sample::select(vec![
            Ruling::Better,
            Ruling::Worse,
            Ruling::CannotTell,
            Ruling::BeyondLimit,
            Ruling::Stalled,
            Ruling::ServiceEnded,
            Ruling::NotJudged,
            Ruling::ClientsLeft,
            Ruling::Interrupted,
        ]);
        prop_oneof![
            6 => ruling.prop_map(Happens::Ruling),
            1 => Just(Happens::Killed),
            1 => Just(Happens::Restart),
            1 => (0_u64..30).prop_map(Happens::Hours),
            1 => Just(Happens::Refused),
        ]
    }

    proptest! {
        #[test]
        fn no_day_has_more_tries_than_are_allowed_and_nothing_that_was_put_back_is_tried_again(
            story in prop::collection::vec(happens(), 1..200),
            a_day in 0_usize..9,
            rungs_there in 0_usize..7,
        ) {
            let ladder = rungs(&["suspend50", "suspend200", "interrupt", "napibusy", "threaded", "defer50"][..rungs_there]);
            let (mut search, mut pid, mut now) = (search(), 1, 1_000_000_000_000_u64);
            let mut in_force: DeliveryMode = "suspend20".parse().expect("a mode");
            let mut all: Vec<u64> = Vec::new();
            let (mut closed, mut hurtful): (Vec<DeliveryMode>, Vec<DeliveryMode>) = Default::default();
            for event in story {
                match event {
                    Happens::Hours(hours) => now += hours * 3_600_000_000,
                    Happens::Restart => {
                        pid += 1;
                        search.renew(&search.intent.clone(), &processes(pid));
                        in_force = "suspend20".parse().expect("a mode");
                        prop_assert_eq!(search.found, None);
                        closed.clone_from(&hurtful);
                    }
                    event => {
                        now += 60_000_000;
                        let moment = SearchInputs { unix_micros: now, a_day, ..MISSED };
                        let chosen = next_try(&mut search, &ladder, in_force, moment, |_| match event {
                            Happens::Refused => Err("refused".to_owned()),
                            _ => Ok(()),
                        });
                        let Next::Try(rung, ()) = chosen else { continue };
                        prop_assert!(!closed.contains(&rung.mode), "{} again: {:?}", rung.mode, search);
                        prop_assert!(rung.mode != in_force);
                        all.push(now);
                        search.begin(rung.mode, in_force, now);
                        let Happens::Ruling(ruling) = event else { continue };
                        search.end(rung.mode, ruling, None);
                        match ruling {
                            Ruling::Better => {
                                closed.push(in_force);
                                in_force = rung.mode;
                            }
                            Ruling::NotJudged | Ruling::ClientsLeft | Ruling::Interrupted => {}
                            _ => closed.push(rung.mode),
                        }
                        if matches!(ruling, Ruling::Stalled | Ruling::ServiceEnded) {
                            hurtful.push(rung.mode);
                        }
                    }
                }
            }
            for (at, begun) in all.iter().enumerate() {
                let day = all[at..].iter().filter(|other| **other - begun < Searches::DAY_MICROS);
                prop_assert!(day.count() <= a_day, "{all:?}");
            }
        }

        #[test]
        fn a_service_to_which_nothing_else_happens_has_each_rung_tried_once_at_most_and_then_it_ends(
            seed in any::<u64>(),
            a_day in 1_usize..9,
        ) {
            let ladder = rungs(&["suspend50", "suspend200", "interrupt", "napibusy", "threaded", "defer50"]);
            let (mut chance, mut search, mut now) = (Chance::new(seed), search(), 1_000_000_000_000_u64);
            let mut in_force: DeliveryMode = "suspend20".parse().expect("a mode");
            let mut tries = 0;
            // The search must end: with at least one try per day, it ends within twice as many days as the
            // ladder has rungs.
            for _ in 0..ladder.len() * 2 * 24 {
                now += 3_600_000_000;
                match next_try(&mut search, &ladder, in_force, SearchInputs { unix_micros: now, a_day, ..MISSED }, |_| Ok(())) {
                    Next::Try(rung, ()) => {
                        tries += 1;
                        search.begin(rung.mode, in_force, now);
                        let better = chance.below(3) == 0;
                        search.end(rung.mode, if better { Ruling::Better } else { Ruling::CannotTell }, None);
                        in_force = search.found.unwrap_or(in_force);
                    }
                    Next::Exhausted(_) => {
                        prop_assert!(tries <= ladder.len());
                        return Ok(());
                    }
                    Next::EnoughToday(at) => prop_assert!(at > now),
                    Next::NotDue => prop_assert!(false, "the goal is missed all the time"),
                }
            }
            prop_assert!(false, "the search has not ended: {tries} tries");
        }
    }
}
