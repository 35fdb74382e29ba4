//! What the scripts in `lua/` do on one node to one resource, written once more for models of nodes.
//!
//! `tests/fencing_model` holds it against real servers.

/// One resource on one node: which token has the key, and the counter beside it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Slot<T> {
    pub key: Option<T>,
    pub counter: Counter,
}

/// The hash that outlives the key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Counter {
    Hash {
        count: Count,
        run: Option<u32>,
    },
    /// The key holds something else.
    WrongType,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Count {
    None,
    Number(i64),
    /// A text that is no number.
    Text,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// `acquire_fenced.lua`: the key is ours, with the counter at this.
    Set(i64),
    Taken,
    /// `confirm.lua`: the key is still ours, with the counter at this.
    Count(i64),
    Gone,
    /// `extend.lua`, `release.lua` and `repair.lua` reply with a number.
    Number(i64),
    /// The counter is no number that can go up.
    CounterError,
    WrongType,
}

impl Counter {
    pub const NONE: Self = Self::Hash { count: Count::None, run: None };

    fn count(self) -> Result<Count, Answer> {
        match self {
            Self::Hash { count, .. } => Ok(count),
            Self::WrongType => Err(Answer::WrongType),
        }
    }

    fn set_count(&mut self, number: i64) {
        if let Self::Hash { count, .. } = self {
            *count = Count::Number(number);
        }
    }
}

impl<T: Copy + Eq> Slot<T> {
    /// `run` is the server's, and `time` its clock in microseconds.
    pub fn acquire(&mut self, token: T, run: u32, time: impl FnOnce() -> i64) -> Answer {
        if self.key.is_some() {
            return Answer::Taken;
        }
        let Counter::Hash { count, run: counted_by } = self.counter else {
            return Answer::WrongType;
        };
        let before = match count {
            Count::None => 0,
            Count::Number(number) => number,
            Count::Text => return Answer::CounterError,
        };
        let before = if counted_by == Some(run) { before } else { before.max(time()) };
        if !(0..COUNT_MAX).contains(&before) {
            return Answer::CounterError;
        }
        let count = before + 1;
        self.counter = Counter::Hash { count: Count::Number(count), run: Some(run) };
        self.key = Some(token);
        Answer::Set(count)
    }

    pub fn confirm(&mut self, token: T, run: u32, proposed: i64) -> Answer {
        if self.key != Some(token) {
            return Answer::Gone;
        }
        match self.counter {
            Counter::WrongType => Answer::WrongType,
            Counter::Hash { run: counted_by, .. } if counted_by != Some(run) => Answer::Gone,
            Counter::Hash { count: Count::None, .. } => Answer::CounterError,
            Counter::Hash { .. } => self.raise(proposed).map_or_else(|error| error, Answer::Count),
        }
    }

    pub fn extend(&self, token: T) -> Answer {
        match self.key {
            Some(there) if there == token => Answer::Number(2),
            Some(_) => Answer::Number(-3),
            None => Answer::Number(-2),
        }
    }

    pub fn release(&mut self, token: T) -> Answer {
        match self.key {
            Some(there) if there == token => {
                self.key = None;
                Answer::Number(1)
            }
            Some(_) => Answer::Number(-1),
            None => Answer::Number(0),
        }
    }

    /// `fencing` is the lock's fencing token, if it has one.
    pub fn repair(&mut self, token: T, fencing: Option<i64>) -> Answer {
        if self.key.is_some_and(|there| there != token) {
            return Answer::Number(-4);
        }
        if let Some(Err(error)) = fencing.map(|fencing| self.raise(fencing)) {
            return error;
        }
        self.key = Some(token);
        Answer::Number(4)
    }

    /// Raises the counter to `least`, and gives what it is then.
    fn raise(&mut self, least: i64) -> Result<i64, Answer> {
        let count = match self.counter.count()? {
            Count::None => 0,
            Count::Number(number) => number,
            Count::Text => return Err(Answer::CounterError),
        };
        if count < least {
            self.counter.set_count(least);
        }
        Ok(count.max(least))
    }
}

/// 2^53 - 1: beyond it Lua's numbers skip some.
const COUNT_MAX: i64 = (1 << 53) - 1;
