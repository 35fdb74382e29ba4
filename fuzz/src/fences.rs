//! The fencing tokens that were taken, and their order: what holds among all of a key's holders, as long as the nodes
//! answer as they should.

use quorlock::internal::time::Time;

use super::nodes::Key;

#[derive(Default)]
pub struct Fences {
    taken: Vec<Taken>,
    /// Whether a node has said what is not so: then numbers need not be in any order.
    pub lied_to: bool,
}

pub struct Taken {
    pub by: Key,
    pub token: u64,
    /// When it was given to the holder.
    pub at: Time,
    /// When the lock was on a quorum of nodes at once, if that is known.
    pub instant: Option<Time>,
}

impl Fences {
    /// The highest token of a key, zero if there is none.
    pub fn highest(&self, key: &[u8]) -> u64 {
        self.of(key).map(|taken| taken.token).max().unwrap_or(0)
    }

    /// A token is taken by a claim whose first byte was written when others had taken up to `above`.
    pub fn take(&mut self, taken: Taken, above: u64) {
        if !self.lied_to {
            let token = taken.token;
            assert!(token > above, "{token} is taken, and before it was asked for {above} was");
            for other in self.of(&taken.by.key) {
                assert_ne!(token, other.token, "a token is taken twice");
                if let (Some(instant), Some(others)) = (taken.instant, other.instant) {
                    let order = (instant.cmp(&others), token.cmp(&other.token));
                    assert!(order.0 == order.1 || instant == others, "tokens in another order");
                }
            }
        }
        self.taken.push(taken);
    }

    /// Nobody with a higher token had the lock on a quorum of nodes, and was told so, before `at`, when an extension of
    /// this one began that was granted.
    pub fn assert_latest(&self, claim: &Key, token: u64, at: Time) {
        let later = self.of(&claim.key).find(|taken| {
            taken.token > token && taken.instant.is_some() && taken.at < at && taken.by != *claim
        });
        if let Some(later) = later.filter(|_| !self.lied_to) {
            panic!("{token} is extended, though {} was taken", later.token);
        }
    }

    fn of(&self, key: &[u8]) -> impl Iterator<Item = &Taken> {
        self.taken.iter().filter(move |taken| taken.by.key == key)
    }
}
