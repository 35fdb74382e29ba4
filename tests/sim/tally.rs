//! What was done: a simulation in which nothing happened has shown nothing.

use std::fmt;

macro_rules! tally {
    ($($(#[$doc:meta])* $count:ident,)*) => {
        #[derive(Clone, Debug, Default, Eq, PartialEq)]
        pub struct Tally { $($(#[$doc])* pub $count: u64,)* }

        impl Tally {
            pub fn add(&mut self, other: &Self) {
                $(self.$count += other.$count;)*
            }

            pub fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($count), self.$count)),*]
            }
        }
    };
}

tally! {
    schedules,
    steps,
    acquired,
    not_acquired,
    cancelled,
    /// Those among the acquired that came with a fencing token, and with a second round.
    fenced,
    confirmed,
    extended,
    not_extended,
    released,
    lost_expired,
    /// In schedules in which keys are deleted by others.
    lost_refused,
    abandoned_replies,
    cuts,
    partitions,
    partitions_up,
    partitions_down,
    stuck,
    slow,
    crashes,
    crashes_long,
    crashes_amnesia,
    refusals,
    errors,
    wrong_replies,
    flushes,
    pauses,
    client_crashes,
    deletions,
    partial_writes,
    /// Commands that ran when the client had left their connection.
    run_after_close,
    /// `SET`s among them that took the key.
    late_sets,
    by_source,
    repairs,
    invalidations,
}

impl Tally {
    /// Everything that can happen where the assumptions hold has happened, and locks were held meanwhile.
    pub fn assert_enough_was_done(&self) {
        for (name, count) in self.counts() {
            let must = name != "crashes_amnesia";
            assert!(count > 0 || !must, "no {name} in {} schedules", self.schedules);
        }
        assert!(self.steps >= 100 * self.schedules, "{} steps", self.steps);
        // Beside those at the end of each schedule, when nothing is wrong any more.
        assert!(self.acquired >= 3 * self.schedules, "{} locks", self.acquired);
        assert!(2 * self.extended >= self.schedules, "{} extensions", self.extended);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, count)) in self.counts().into_iter().enumerate() {
            let end = if i % 4 == 3 { "\n" } else { "" };
            write!(f, "{name:>18} {count:<10}{end}")?;
        }
        Ok(())
    }
}
