//! What the clients wrote down, and what must hold of it.
//!
//! A client claims a resource from when it was told that it holds it until the validity that it was told of is over, or
//! until it lets go: that it writes down before it does. Claims of two locks on one resource must not overlap, and
//! fencing tokens go up. All times are nanoseconds of one clock, which all processes of a machine share and which goes on
//! while they are stopped.

use std::collections::{BTreeMap, HashSet};

/// For how long a lock was relied on. An extension makes one more.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claim {
    pub resource: String,
    pub token: String,
    pub from: u64,
    /// Not itself in it.
    pub until: u64,
}

/// A fencing token that somebody was given.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fenced {
    pub resource: String,
    pub number: u64,
    /// Since when it was asked for, and when it was there.
    pub asked: u64,
    pub given: u64,
}

/// What happened to one client, or to all of them.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub claims: Vec<Claim>,
    pub fenced: Vec<Fenced>,
    /// Tokens of locks that their holder let go of and went on to live.
    pub released: HashSet<String>,
    /// Resources that nobody else wants, of clients who want nothing any more.
    pub own: HashSet<String>,
    /// Resources that were had again after the faults.
    pub proved: usize,
    /// What else the clients counted.
    pub counts: BTreeMap<String, u64>,
}

impl History {
    /// Reads the lines that a client wrote; [`Line`] has them.
    pub fn read(log: &str) -> Self {
        let mut history = Self::default();
        let (mut released, mut own) = (HashSet::new(), HashSet::new());
        for line in log.lines() {
            match Line::read(line) {
                Line::Claim(claim) => history.claims.push(claim),
                Line::Fenced(fenced) => history.fenced.push(fenced),
                Line::LetGo { token, at } => {
                    let of_it =
                        history.claims.iter_mut().rev().filter(|claim| claim.token == token);
                    of_it.for_each(|claim| claim.until = claim.until.min(at));
                }
                Line::Own { resource } => drop(own.insert(resource)),
                Line::Released { token } => drop(released.insert(token)),
                Line::Settled { unconfirmed: 0 } => {
                    history.released = std::mem::take(&mut released);
                    history.own = std::mem::take(&mut own);
                }
                Line::Settled { .. } => *history.counts.entry("unsettled".into()).or_default() += 1,
                Line::Proved { .. } => history.proved += 1,
                Line::Count { what } => *history.counts.entry(what).or_default() += 1,
            }
        }
        history
    }

    pub fn add(&mut self, other: Self) {
        self.claims.extend(other.claims);
        self.fenced.extend(other.fenced);
        self.released.extend(other.released);
        self.own.extend(other.own);
        self.proved += other.proved;
        for (what, count) in other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    /// How many locks were held.
    pub fn locks(&self) -> usize {
        self.claims.iter().map(|claim| &claim.token).collect::<HashSet<_>>().len()
    }

    /// How often one was held for longer than it was taken for.
    pub fn extensions(&self) -> usize {
        self.claims.len() - self.locks()
    }
}

/// Two locks on one resource, both relied on at one moment: all such pairs of neighbours.
pub fn overlaps(claims: &[Claim]) -> Vec<[&Claim; 2]> {
    let mut by_start: Vec<_> = claims.iter().filter(|claim| claim.from < claim.until).collect();
    by_start.sort_by_key(|claim| (&claim.resource, claim.from));
    let mut overlaps = Vec::new();
    // Those that are not over yet.
    let mut live: Vec<&Claim> = Vec::new();
    for claim in by_start {
        live.retain(|other| other.resource == claim.resource && claim.from < other.until);
        let others = live.iter().filter(|other| other.token != claim.token);
        overlaps.extend(others.map(|other| [*other, claim]));
        live.push(claim);
    }
    overlaps
}

/// Fencing tokens of one resource, the second of which should be above the first and is not: it was asked for when the
/// first was given, or it is the same.
pub fn disorders(fenced: &[Fenced]) -> Vec<[&Fenced; 2]> {
    let mut by_number: Vec<_> = fenced.iter().collect();
    by_number.sort_by_key(|fenced| (&fenced.resource, fenced.number));
    let neighbours = by_number.windows(2).map(|pair| [pair[0], pair[1]]);
    let same = |[a, b]: &[&Fenced; 2]| a.resource == b.resource && a.number == b.number;
    let mut disorders: Vec<_> = neighbours.filter(same).collect();
    let mut by_start = by_number;
    by_start.sort_by_key(|fenced| (&fenced.resource, fenced.asked));
    let mut by_end = by_start.clone();
    by_end.sort_by_key(|fenced| (&fenced.resource, fenced.given));
    let mut ended = by_end.into_iter().peekable();
    let mut highest: Option<&Fenced> = None;
    for fenced in by_start {
        highest = highest.filter(|highest| highest.resource == fenced.resource);
        let place = (&fenced.resource, fenced.asked);
        while let Some(before) = ended.next_if(|other| (&other.resource, other.given) < place) {
            let higher = highest.is_none_or(|highest| highest.number < before.number);
            if before.resource == fenced.resource && higher {
                highest = Some(before);
            }
        }
        disorders.extend(
            highest.filter(|highest| highest.number > fenced.number).map(|before| [before, fenced]),
        );
    }
    disorders
}

/// One line of a client's log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Line {
    Claim(Claim),
    Fenced(Fenced),
    /// From here on nothing is claimed by what was claimed before.
    LetGo {
        token: String,
        at: u64,
    },
    /// To be taken, if it can be: its keys must go, whatever comes of that.
    Own {
        resource: String,
    },
    /// Its keys must go.
    Released {
        token: String,
    },
    /// So many releases were not answered by every node.
    Settled {
        unconfirmed: usize,
    },
    Proved {
        resource: String,
    },
    Count {
        what: String,
    },
}

impl Line {
    fn read(line: &str) -> Self {
        let mut words = line.split(' ').map(String::from);
        let mut word = || words.next().unwrap_or_else(|| panic!("{line}"));
        let number = |word: String| word.parse().unwrap_or_else(|_| panic!("{line}"));
        match word().as_str() {
            "claim" => Self::Claim(Claim {
                resource: word(),
                token: word(),
                from: number(word()),
                until: number(word()),
            }),
            "fenced" => Self::Fenced(Fenced {
                resource: word(),
                number: number(word()),
                asked: number(word()),
                given: number(word()),
            }),
            "let-go" => Self::LetGo { token: word(), at: number(word()) },
            "own" => Self::Own { resource: word() },
            "released" => Self::Released { token: word() },
            "settled" => Self::Settled { unconfirmed: number(word()) as usize },
            "proved" => Self::Proved { resource: word() },
            "count" => Self::Count { what: word() },
            _ => panic!("{line}"),
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Claim(Claim { resource, token, from, until }) => {
                write!(f, "claim {resource} {token} {from} {until}")
            }
            Self::Fenced(Fenced { resource, number, asked, given }) => {
                write!(f, "fenced {resource} {number} {asked} {given}")
            }
            Self::LetGo { token, at } => write!(f, "let-go {token} {at}"),
            Self::Own { resource } => write!(f, "own {resource}"),
            Self::Released { token } => write!(f, "released {token}"),
            Self::Settled { unconfirmed } => write!(f, "settled {unconfirmed}"),
            Self::Proved { resource } => write!(f, "proved {resource}"),
            Self::Count { what } => write!(f, "count {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(resource: &str, token: &str, from: u64, until: u64) -> Claim {
        Claim { resource: resource.into(), token: token.into(), from, until }
    }

    fn pairs(claims: &[Claim]) -> Vec<String> {
        let pair = |[a, b]: &[&Claim; 2]| format!("{}{}", a.token, b.token);
        overlaps(claims).iter().map(pair).collect()
    }

    #[test]
    fn one_after_the_other_is_no_overlap() {
        let claims = [claim("r", "a", 0, 10), claim("r", "b", 10, 20), claim("r", "c", 20, 21)];
        assert!(pairs(&claims).is_empty());
        let backwards: Vec<_> = claims.into_iter().rev().collect();
        assert!(pairs(&backwards).is_empty());
    }

    #[test]
    fn two_resources_do_not_overlap_nor_does_a_lock_with_its_own_extensions() {
        let claims = [claim("r", "a", 0, 10), claim("s", "b", 0, 10), claim("r", "a", 5, 20)];
        assert!(pairs(&claims).is_empty());
    }

    #[test]
    fn one_moment_in_common_is_an_overlap() {
        assert_eq!(pairs(&[claim("r", "b", 9, 20), claim("r", "a", 0, 10)]), ["ab"]);
    }

    #[test]
    fn one_within_another_is_seen_and_so_is_one_after_that() {
        let claims = [claim("r", "a", 0, 100), claim("r", "b", 10, 20), claim("r", "c", 50, 60)];
        assert_eq!(pairs(&claims), ["ab", "ac"]);
    }

    #[test]
    fn an_extension_overlaps_too() {
        let claims = [claim("r", "a", 0, 10), claim("r", "a", 9, 30), claim("r", "b", 12, 20)];
        assert_eq!(pairs(&claims), ["ab"]);
    }

    #[test]
    fn what_was_never_valid_is_no_claim() {
        assert!(pairs(&[claim("r", "a", 0, 10), claim("r", "b", 5, 5)]).is_empty());
    }

    fn fenced(resource: &str, number: u64, asked: u64, given: u64) -> Fenced {
        Fenced { resource: resource.into(), number, asked, given }
    }

    fn numbers(fenced: &[Fenced]) -> Vec<[u64; 2]> {
        disorders(fenced).iter().map(|pair| pair.map(|fenced| fenced.number)).collect()
    }

    #[test]
    fn tokens_that_go_up_are_in_order_and_so_are_any_that_were_asked_for_at_a_time() {
        let in_turn = [fenced("r", 1, 0, 1), fenced("r", 3, 2, 3), fenced("s", 2, 4, 5)];
        assert!(numbers(&in_turn).is_empty());
        assert!(numbers(&[fenced("r", 2, 0, 10), fenced("r", 1, 5, 15)]).is_empty());
    }

    #[test]
    fn tokens_that_go_down_are_seen_also_behind_others() {
        assert_eq!(numbers(&[fenced("r", 2, 0, 1), fenced("r", 1, 2, 3)]), [[2, 1]]);
        let behind = [fenced("r", 9, 0, 1), fenced("r", 1, 0, 2), fenced("r", 8, 3, 4)];
        assert_eq!(numbers(&behind), [[9, 8]]);
        let other = [fenced("q", 99, 0, 1), fenced("r", 5, 1, 2), fenced("r", 4, 3, 4)];
        assert_eq!(numbers(&other), [[5, 4]]);
    }

    #[test]
    fn a_token_that_comes_twice_is_seen_whenever_it_was_asked_for() {
        assert_eq!(numbers(&[fenced("r", 2, 0, 10), fenced("r", 2, 5, 15)]), [[2, 2]]);
        assert!(numbers(&[fenced("r", 2, 0, 10), fenced("s", 2, 5, 15)]).is_empty());
    }

    #[test]
    fn letting_go_ends_what_was_claimed_and_not_what_is_claimed_later() {
        let lines = [
            Line::Claim(claim("r", "a", 0, 100)),
            Line::LetGo { token: "a".into(), at: 10 },
            Line::Claim(claim("r", "a", 12, 50)),
        ];
        let log: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let history = History::read(&log);
        assert_eq!(history.claims, [claim("r", "a", 0, 10), claim("r", "a", 12, 50)]);
        assert_eq!((history.locks(), history.extensions()), (1, 1));
    }

    #[test]
    fn only_who_has_settled_has_released_for_sure() {
        let released = |rest: &str| {
            let history = History::read(&format!("own r\nreleased a\nreleased b\n{rest}"));
            (history.own.len(), history.released.len())
        };
        assert_eq!(released(""), (0, 0));
        assert_eq!(released("settled 1\n"), (0, 0));
        assert_eq!(released("settled 0\n"), (1, 2));
    }
}
