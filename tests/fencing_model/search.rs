//! Every state that can be reached, breadth first, until one breaks what is looked for.

use std::time::Instant;

use crate::{
    model::{Broken, Model, Next},
    state::{Packed, State},
};

#[derive(Debug)]
pub struct Outcome {
    /// How a property is broken, in the fewest steps; none if it never is.
    pub trace: Option<Trace>,
    pub states: usize,
}

#[derive(Debug)]
pub struct Trace {
    pub broken: Broken,
    pub steps: Vec<String>,
    /// The replies that were read in them.
    pub reads: usize,
}

/// Looks at every state of the model, and says what it took.
pub fn search(model: &Model, properties: Broken) -> Outcome {
    let begun = Instant::now();
    let mut seen = Seen::default();
    for state in model.initial() {
        seen.insert(state.canonical(), NOBODY);
    }
    let (mut at, mut end_of_level, mut depth, mut transitions) = (0, seen.states.len(), 0, 0_u64);
    let mut found = Vec::new();
    let mut broken = None;
    'search: while at < seen.states.len() {
        if at == end_of_level {
            (end_of_level, depth) = (seen.states.len(), depth + 1);
        }
        model.successors(&State::unpack(seen.states[at]), &mut found);
        transitions += found.len() as u64;
        for next in &found {
            if next.broken.intersects(properties) {
                broken = Some(next.state.canonical());
                break 'search;
            }
            seen.insert(next.state.canonical(), at as u32);
        }
        at += 1;
    }
    let trace = broken.map(|last| seen.trace(model, at, last, properties));
    let (states, time) = (seen.states.len(), begun.elapsed().as_secs_f64());
    let result = match &trace {
        None => "holds".into(),
        Some(Trace { broken, steps, reads }) => {
            format!("{broken:?} is broken in {} steps and {reads} reads", steps.len())
        }
    };
    let Model { fencing, attempts, leftover, failures, .. } = model;
    let wrong = model.flaw.map_or_else(String::new, |flaw| format!(", {flaw:?}"));
    println!(
        "{fencing:?}, {attempts} attempts, counters from 0..={leftover}, {failures} {:?}{wrong}: {properties:?}: \
         {result}; {states} states, {transitions} transitions, depth {depth}, {time:.1} s",
        model.failure
    );
    Outcome { trace, states }
}

/// The states, in the order in which they were found, and each by what it is.
#[derive(Default)]
struct Seen {
    states: Vec<Packed>,
    parents: Vec<u32>,
    /// Open addressing; an empty place is `NOBODY`.
    table: Vec<u32>,
}

impl Seen {
    fn insert(&mut self, state: Packed, parent: u32) {
        if self.table.len() < 2 * (self.states.len() + 1) {
            self.grow();
        }
        let place = self.place(state);
        if self.table[place] == NOBODY {
            self.table[place] = self.states.len() as u32;
            self.states.push(state);
            self.parents.push(parent);
        }
    }

    /// Where it is, or belongs.
    fn place(&self, state: Packed) -> usize {
        let mask = self.table.len() - 1;
        let mut place = hash(state) as usize & mask;
        while self.table[place] != NOBODY && self.states[self.table[place] as usize] != state {
            place = (place + 1) & mask;
        }
        place
    }

    fn grow(&mut self) {
        self.table = vec![NOBODY; (self.table.len() * 4).max(1 << 10)];
        for i in 0..self.states.len() {
            let place = self.place(self.states[i]);
            self.table[place] = i as u32;
        }
    }

    /// The way to a state, and from there to the one that is broken, with the names of the first.
    fn trace(&self, model: &Model, to: usize, last: Packed, properties: Broken) -> Trace {
        let mut way = vec![last];
        let mut at = to as u32;
        while at != NOBODY {
            way.push(self.states[at as usize]);
            at = self.parents[at as usize];
        }
        let mut state = State::unpack(way.pop().expect("the first state"));
        let mut trace = Trace { broken: Broken::default(), steps: Vec::new(), reads: 0 };
        let mut found = Vec::new();
        while let Some(to) = way.pop() {
            model.successors(&state, &mut found);
            let is_next = |next: &&Next| {
                next.state.canonical() == to
                    && (!way.is_empty() || next.broken.intersects(properties))
            };
            let next = found.iter().find(is_next).expect("the next state");
            state = next.state;
            trace.broken = next.broken;
            trace.steps.push(format!("{:?}", next.step));
            trace.reads += next.step.reads();
        }
        trace
    }
}

fn hash(state: Packed) -> u64 {
    state.into_iter().fold(1, |hash, word| {
        let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
        (product >> 64) as u64 ^ product as u64
    })
}

const NOBODY: u32 = u32::MAX;
